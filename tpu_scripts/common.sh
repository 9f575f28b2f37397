# shellcheck shell=bash disable=SC2034  # variables are for the scripts that source this
# Sourced by the scripts of this folder: options, checks, and the one way to call gcloud.
#
# A script says in USES which options it takes, then calls `parse "$@"`. Their values are
# in OPTION, what follows -- (or is no option) in REST.
set -euo pipefail

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "$(basename "$0"): error: bash $BASH_VERSION is too old; 4.4 or later is needed" >&2
  exit 2
fi

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# Commands that --dry-run shows go here, also from within $(...).
exec 3>&1
SCRATCH="$(mktemp -d)"
trap 'rm -rf "$SCRATCH"' EXIT

# Every resource has this label; the scripts never touch resources without it.
PROJECT_LABEL=decoupled

# NAME=VALUE for an option with a value, NAME for a switch; then what --help says.
OPTIONS=(
  "name=NODE|of the TPU VM and of its queued resource, e.g. decoupled-1"
  "zone=ZONE|e.g. us-central1-a"
  "zones=ZONE,ZONE|where to look; - is everywhere"
  "type=v6e-8|accelerator type: v2, v3, v4, v5p (and TensorCores); v5litepod, v6e (and chips)"
  "version=IMAGE|runtime image (default: by type; tpu-ubuntu2204-base runs v2 to v4 under JAX)"
  "project=PROJECT|of Google Cloud (default: gcloud's own)"
  "service_account=EMAIL|what the TPU VM acts as; docs/accelerators.md lists the roles it needs"
  "scopes=SCOPES|of that account on the VM (default: gcloud's, all of its roles)"
  "create_arg=ARG|one more argument of gcloud's create, e.g. --create_arg=--network=N; repeatable"
  "internal_ip|no public addresses: create and connect within the network"
  "spot|cheaper; may be preempted at any time"
  "plain|create the node at once, without a queued resource; fails if the zone has no capacity"
  "valid_until=6h|give the queued resource up when it has no slice by then"
  "wait|return when the slice is ready, not when it is requested"
  "worker=0|the host to copy to: 0, or all (needs ssh-add ~/.ssh/google_compute_engine)"
  "package=FILE|sdist or wheel, local or gs:// (default: the commit that is checked out)"
  "with_package|also copy the commit that is checked out, as decoupled.tar.gz"
  "model_dir=gs://...|of the run"
  "from=gs://...|folder to copy"
  "to=PATH|where to: a folder here, gs://..., or a folder on the TPU VM if --name is given"
  "no_checkpoints|leave model.ckpt-* there"
  "log=LINES|of the job's log (default: 5)"
  "jobs=FILE|a line per job: the command and its flags, e.g. pretrain --model_dir=gs://..."
  "slices=N|divide the jobs over N slices, NAME-0 to NAME-(N-1) (default: 1)"
  "again|also run jobs that are complete"
  "env=NAME=VALUE|in the job's environment; repeatable; never for secrets"
  "max_attempts=5|starts in a row that leave no new checkpoint before giving up"
  "max_hours=48|of this script and of each job: then the slice is deleted"
  "stall_minutes=60|a job that prints nothing for so long counts as hanging"
  "keep|do not delete the slice at the end: it costs until delete.sh"
  "force|do what this script would refuse"
  "dry_run|print the commands, run nothing"
)
REPEATABLE=" env create_arg "

declare -A OPTION=()
REST=() GIVEN=()

usage() {
  # The script's own head comment, without the first line and the marks.
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
  printf '\nOptions:\n'
  local name entry
  for name in "${USES[@]}"; do
    entry="$(option_entry "$name")"
    name="--${entry%%|*}"
    printf '  %-24s %s\n' "${name/#--dry_run/--dry-run}" "${entry#*|}"
  done
}

fail() {
  echo "$(basename "$0"): error: $1" >&2
  exit "${2:-2}"
}

# say TEXT: one line; among the commands of a dry run, a comment.
say() {
  TZ=UTC0 printf '%s%(%F %T)T %s: %s\n' "${OPTION[dry_run]:+# }" -1 \
    "${OPTION[name]:-$(basename "$0")}" "$1" >&3
}

warn() {
  echo "$(basename "$0"): warning: $1" >&2
}

option_entry() {
  local entry
  for entry in "${OPTIONS[@]}"; do
    case "$entry" in "$1="* | "$1|"*) echo "$entry" ;; esac
  done
}

# parse ARGUMENT...: fills OPTION and REST; GIVEN is what stood before --.
parse() {
  local name
  for name in "${USES[@]}"; do OPTION[$name]=''; done
  while (($#)); do
    case "$1" in
      --) REST+=("${@:2}"); return ;;
      -h | --help) usage; exit 0 ;;
      --*) set_option "$1" ;;
      *) REST+=("$1") ;;
    esac
    GIVEN+=("$1")
    shift
  done
}

set_option() {
  local name="${1#--}" entry
  name="${name%%=*}"
  name="${name//-/_}"
  entry="$([[ " ${USES[*]} " == *" $name "* ]] && option_entry "$name" || true)"
  case "$entry" in
    '') fail "unknown option $1; --help lists them" ;;
    "$name="*) [[ $1 == *=?* ]] || fail "--$name wants a value: --${entry%%|*}" ;;
    *) [[ $1 != *=* ]] || fail "--$name takes no value" ;;
  esac
  if [[ $1 != *=* ]]; then
    OPTION[$name]=1
  elif [[ $REPEATABLE == *" $name "* ]]; then
    OPTION[$name]+="${1#*=}"$'\n'
  else
    OPTION[$name]="${1#*=}"
  fi
}

# split_job LINE: sets JOB_LINE to the words of a line of --jobs. It removes quotes as a shell
# does, but expands and runs nothing.
split_job() {
  local word
  # Words without one, then one: xargs would keep it, and a shell not always.
  local kept=$'^([^\'"\\]|\\\\.|\'[^\']*\'|"[^"\\]*")*"[^"\\]*\\\\'
  [[ ! $1 =~ $kept ]] || fail "--jobs=${OPTION[jobs]}: a backslash within double quotes; use \
single quotes: $1"
  mapfile -d '' -t JOB_LINE < <(xargs printf '%s\0' <<<"$1" 2>"$SCRATCH/errors")
  [[ ! -s $SCRATCH/errors ]] || fail "--jobs=${OPTION[jobs]}: quotes do not match: $1"
  for word in "${JOB_LINE[@]:1}"; do
    [[ $word == --* ]] || fail "--jobs=${OPTION[jobs]}: unexpected argument '$word'; \
write --flag=value, and a comment on a line of its own: $1"
  done
}

# need NAME EXAMPLE: the option must be given.
need() {
  [[ -n ${OPTION[$1]} ]] || fail "--$1 must be given, e.g. --$1=$2"
}

need_slice() {
  need name decoupled-1
  need zone us-central1-a
  # Also a name of a queued resource, a label and part of a path.
  [[ ${OPTION[name]} =~ ^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$ ]] ||
    fail "--name=${OPTION[name]}: small letters, digits and - only, at most 63, a letter first"
}

# need_number NAME DEFAULT
need_number() {
  OPTION[$1]="${OPTION[$1]:-$2}"
  [[ ${OPTION[$1]} =~ ^[0-9]{1,7}$ ]] || fail "--$1=${OPTION[$1]}: not a whole number"
  # With a leading zero bash would read it as octal.
  OPTION[$1]=$((10#${OPTION[$1]}))
}

no_rest() {
  ((${#REST[@]} == 0)) || fail "${REST[0]} belongs to no option; --help lists them"
}

# need_remote WHAT PATH: what is on the slice's own disk is lost with the slice.
need_remote() {
  [[ $2 == gs://?* || -n ${OPTION[force]:-} ]] ||
    fail "$1=$2: must be on gs://; the disk of a slice is gone when the slice is"
}

# refuse WHY: ends, or with --force only warns.
refuse() {
  [[ -n ${OPTION[force]:-} ]] || fail "$1 (--force tries it)"
  warn "$1"
}

# Only some hardware and images can run the package at all.
check_runtime() {
  need type v6e-8
  local type="${OPTION[type]}" version
  [[ $type =~ ^[a-z][a-z0-9]*-[1-9][0-9]{0,4}$ ]] || fail "--type=$type: not of the form v3-8"
  case "$type" in
    v[234]-* | v5p-* | v5litepod-* | v6e-*) ;;
    v5e-*) fail "--type=$type: gcloud's name is v5litepod-${type#v5e-}" ;;
    tpu7x-*) fail "--type=$type: gcloud compute tpus cannot create TPU7x; create it with Compute \
Engine or GKE, and start the command with --accelerator=tpu on each of its hosts" ;;
    *) refuse "--type=$type: none of v2, v3, v4, v5litepod, v5p, v6e" ;;
  esac
  version="$(runtime_version)"
  case "$type $version" in
    *' tpu-vm-tf-'*pjrt*) refuse "--version=$version: TPUEstimator finds no TPU with the PJRT \
runtime (tensorflow issue 90807); $(other_image)" ;;
    v[234]-*' tpu-vm-tf-2.15.'*-se) ;;
    v[234]-*' tpu-vm-tf-2.15.'*) refuse "--version=$version: from 2.15 on the images that \
TPUEstimator needs end in -se (stream executor), e.g. tpu-vm-tf-2.15.1-se" ;;
    *' tpu-vm-tf-'*) refuse "--version=$version: TPUEstimator needs TensorFlow 2.15 on v2, v3 or \
v4; $(other_image)" ;;
  esac
  if by_estimator && several_hosts && [[ $version != *-pod* ]]; then
    refuse "--version=$version: $type has several hosts, whose image ends in -pod-se"
  fi
}

# by_estimator: the image has the TensorFlow of TPUEstimator, whose first host drives all cores.
# With any other image every host runs the command, under JAX.
by_estimator() {
  [[ $(runtime_version) == tpu-vm-tf-* ]]
}

# hosts: how many the slice has.
hosts() {
  local size="${OPTION[type]##*-}"
  case "${OPTION[type]}" in
    v5litepod-* | v6e-*) echo $((size <= 8 ? 1 : size / 4)) ;;
    *) echo $(((size + 7) / 8)) ;;
  esac
}

# workers: which hosts run the command.
workers() {
  if by_estimator || ! several_hosts; then echo 0; else echo all; fi
}

several_hosts() {
  (($(hosts) > 1))
}

# chips: how many each host has.
chips() {
  local size="${OPTION[type]##*-}"
  case "${OPTION[type]}" in
    v5litepod-* | v6e-*) echo $((size <= 8 ? size : 4)) ;;
    *) echo 4 ;;
  esac
}

runtime_version() {
  if [[ -n ${OPTION[version]} ]]; then
    echo "${OPTION[version]}"
    return
  fi
  case "${OPTION[type]}" in
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) if several_hosts; then echo tpu-vm-tf-2.15.1-pod-se; else echo tpu-vm-tf-2.15.1-se; fi ;;
  esac
}

other_image() {
  case "${OPTION[type]}" in
    v[234]-*) echo "use tpu-vm-tf-2.15.1-se, or tpu-ubuntu2204-base, where JAX computes" ;;
    *) echo "leave --version out" ;;
  esac
}

# quoted WORD...: one string that a bash, here or elsewhere, splits into the same words.
quoted() {
  local word line=''
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="${word@Q}"
    line+="${line:+ }$word"
  done
  echo "$line"
}

# show WORD...: the command, as it can be typed.
show() {
  quoted "$@" >&3
}

# run WORD...: runs a command that changes something.
run() {
  if [[ -n ${OPTION[dry_run]} ]]; then show "$@"; else "$@"; fi
}

# ask ANSWER WORD...: runs a command that only reads. Its output is in ANSWER, its errors
# are in ERRORS. With --dry-run the command is shown, and the answer is the given one.
ask() {
  local canned="$1" code=0
  shift
  ANSWER="$canned" ERRORS=''
  if [[ -n ${OPTION[dry_run]} ]]; then show "$@"; return; fi
  ANSWER="$("$@" 2>"$SCRATCH/errors")" || code=$?
  ERRORS="$(<"$SCRATCH/errors")"
  return "$code"
}

# in_zone WORD...: makes COMMAND a gcloud command on TPUs, in the zone and the project.
in_zone() {
  COMMAND=(gcloud compute tpus "$@" "--zone=${OPTION[zone]}")
  [[ -z ${OPTION[project]} ]] || COMMAND+=("--project=${OPTION[project]}")
}

# on_worker WORKER VERB WORD...: makes COMMAND gcloud's ssh or scp to hosts of the slice.
on_worker() {
  in_zone tpu-vm "${@:2}" "--worker=$1"
  # The first connection makes a key; nobody may be there to answer questions about it.
  COMMAND+=(--quiet)
  [[ -z ${OPTION[internal_ip]:-} ]] || COMMAND+=(--internal-ip)
}

# check_package: what is to be installed is there.
check_package() {
  case "${OPTION[package]}" in
    gs://*) ;;
    '') find_commit ;;
    *) [[ -n ${OPTION[dry_run]} || -f ${OPTION[package]} ]] ||
      fail "--package=${OPTION[package]}: no such file" ;;
  esac
}

find_commit() {
  git -C "$HERE/.." rev-parse --verify --quiet HEAD >"$SCRATCH/commit" ||
    fail "no commit to package; give --package=FILE (python -m pip wheel --no-deps .)"
}

# make_package FILE: the commit that is checked out, as a source distribution.
make_package() {
  local root="$HERE/.."
  find_commit
  [[ -z $(git -C "$root" status --porcelain --untracked-files=no) ]] ||
    warn "changes that are not committed are not packaged; the slice gets $(<"$SCRATCH/commit")"
  run git -C "$root" archive --format=tar.gz --prefix=decoupled/ "--output=$1" HEAD
}
