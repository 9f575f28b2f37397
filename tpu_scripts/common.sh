# Sourced by the scripts of this folder: options, checks, and the one way to call gcloud.
set -euo pipefail

usage() {
  # The script's own head comment, without the first line and the marks.
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
  cat <<'TEXT'

Options:
  --name=NODE           of the TPU VM (required but for list.sh)
  --zone=ZONE           e.g. us-central1-a (required)
  --type=v3-8           accelerator type: v2, v3 or v4
  --version=VERSION     runtime image (default: tpu-vm-tf-2.15.0, -pod for slices)
  --project=PROJECT     default: gcloud's own
  --service_account=SA  what the TPU VM acts as
  --spot                cheaper, may be taken away at any time
  --dry-run             print the commands, run nothing
TEXT
}

fail() {
  echo "$(basename "$0"): error: $1" >&2
  exit 2
}

NAME='' ZONE='' TYPE='v3-8' VERSION='' PROJECT='' SERVICE_ACCOUNT='' SPOT='' DRY_RUN=''
for option in "$@"; do
  case "$option" in
    --name=*) NAME="${option#*=}" ;;
    --zone=*) ZONE="${option#*=}" ;;
    --type=*) TYPE="${option#*=}" ;;
    --version=*) VERSION="${option#*=}" ;;
    --project=*) PROJECT="${option#*=}" ;;
    --service_account=*) SERVICE_ACCOUNT="${option#*=}" ;;
    --spot) SPOT=1 ;;
    --dry-run) DRY_RUN=1 ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown option $option; --help lists them" ;;
  esac
done

[[ -n $ZONE ]] || fail "--zone must be given, e.g. --zone=us-central1-a"

# TPU v5 and later exist with the PJRT runtime only, where TPUEstimator finds no TPU
# (tensorflow issue 90807).
case "$TYPE" in
  v2-* | v3-* | v4-*) ;;
  *) fail "--type=$TYPE: TPUEstimator works on v2, v3 and v4 only" ;;
esac
case "$VERSION" in
  *pjrt*) fail "--version=$VERSION: TPUEstimator does not work with PJRT runtimes" ;;
esac

need_name() {
  [[ -n $NAME ]] || fail "--name must be given, e.g. --name=decoupled-1"
}

# More cores than one host has: a slice of several hosts, with an image of its own.
runtime_version() {
  local cores="${TYPE#*-}"
  if [[ -n $VERSION ]]; then
    echo "$VERSION"
  elif ((cores > 8)); then
    echo tpu-vm-tf-2.15.0-pod
  else
    echo tpu-vm-tf-2.15.0
  fi
}

# tpu SUBCOMMAND ARGUMENT...: gcloud compute tpus tpu-vm, in the zone and project.
tpu() {
  local command=(gcloud compute tpus tpu-vm "$@" "--zone=$ZONE")
  [[ -z $PROJECT ]] || command+=("--project=$PROJECT")
  if [[ -n $DRY_RUN ]]; then
    printf '%q ' "${command[@]}"
    echo
  else
    "${command[@]}"
  fi
}
