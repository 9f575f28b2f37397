#!/usr/bin/env bash
# Runs commands of the package on a TPU slice until they are complete. Gets the slice, waits
# until it is ready, installs the package, starts the job, where it outlives the connection, and
# follows its reports on gs://. A slice that was preempted, suspended or failed is deleted and
# created anew, and the job resumes from its checkpoint on gs://. At the end, also on Ctrl-C, the
# slice is deleted.
#
# On v5litepod, v5p and v6e every host runs the job, and JAX computes. On v2, v3 and v4 the first
# host does, with TPUEstimator; or every host, with --version=tpu-ubuntu2204-base.
#
#   tpu_scripts/run.sh --name=decoupled-1 --zone=us-central1-a --type=v6e-16 --spot \
#       -- pretrain --gin_file=models/rembert.gin --model_dir=gs://bucket/rembert ...
#   tpu_scripts/run.sh --name=xnli --zone=us-central1-a --type=v6e-8 --spot \
#       -- finetune --task=xnli --data_dir=gs://bucket/data/xtreme \
#       --init_checkpoint=gs://bucket/rembert --model_dir=gs://bucket/rembert_xnli
#   tpu_scripts/run.sh --name=decoupled-1 --zone=us-central1-a --jobs=jobs.txt
#
# All paths of a job must be on gs://, except names of files in gin/; upload.sh puts data there.
#
# Keep it alive: start it in tmux or under nohup. When started again, it finds its slice and
# follows the job that runs there. Where all jobs are complete and none runs, it deletes the slice.
# It adds the flag --accelerator=tpu, or for TPUEstimator --tpu, --tpu_zone and --gcp_project.
#
# Exit codes: 0 all complete; 2 a mistake, also one that the job found; 3 no quota; 4 gave up,
# see the last lines; 5 the slice could not be deleted and may cost money.
USES=(name zone type version project service_account scopes create_arg internal_ip spot
  plain valid_until package jobs again env max_attempts max_hours stall_minutes keep force
  dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=slice.sh
source "$(dirname "$0")/slice.sh"
# shellcheck source=job.sh
source "$(dirname "$0")/job.sh"
# shellcheck source=launch.sh
source "$(dirname "$0")/launch.sh"

parse_run() {
  parse "$@"
  need_slice
  check_runtime
  check_package
  [[ ${OPTION[package]} != gs://* ]] || ask '' gcloud storage ls "${OPTION[package]}" ||
    fail "--package=${OPTION[package]}: cannot be read (${ERRORS//$'\n'/ })"
  need_number max_attempts 5
  need_number max_hours 48
  need_number stall_minutes 60
  MAX_ATTEMPTS="${OPTION[max_attempts]}"
  MAX_SECONDS=$((OPTION[max_hours] * 3600))
  STALL_SECONDS="${DECOUPLED_TPU_STALL:-$((OPTION[stall_minutes] * 60))}"
  local entry name
  # The first report, or the first loss, would be the end of what had just begun.
  for name in max_attempts stall_minutes; do
    ((${OPTION[$name]} >= 1)) || fail "--$name=0: at least one"
  done
  while IFS= read -r entry; do
    [[ -z $entry || $entry =~ ^[A-Za-z_][A-Za-z_0-9]*= ]] || fail "--env=$entry: not NAME=VALUE"
  done <<<"${OPTION[env]}"
  if [[ $(workers) == all && -z ${OPTION[dry_run]} ]] && ! ssh-add -l >/dev/null 2>&1; then
    refuse "no key in an ssh agent, with which gcloud reaches $(hosts) hosts at once: \
eval \"\$(ssh-agent)\"; ssh-add ~/.ssh/google_compute_engine"
  fi
  [[ -n ${OPTION[service_account]} ]] ||
    warn "no --service_account: the slice acts as the project's default account, which may \
do more than it needs"
}

# read_jobs: checks all jobs before anything is created; JOBS is how many there are.
read_jobs() {
  local line
  JOBS=0
  if [[ -z ${OPTION[jobs]} ]]; then
    ((${#REST[@]})) || fail "no job; give it after --, e.g. -- pretrain --model_dir=gs://..."
    add_job "${REST[@]}"
    return
  fi
  no_rest
  [[ -r ${OPTION[jobs]} ]] || fail "--jobs=${OPTION[jobs]}: cannot be read"
  while IFS= read -r line || [[ -n $line ]]; do
    # Of an editor on Windows: a byte order mark, and line ends.
    line="${line#$'\xef\xbb\xbf'}" line="${line%$'\r'}"
    [[ ! $line =~ ^[[:space:]]*(#|$) ]] || continue
    split_job "$line"
    add_job "${JOB_LINE[@]}"
  done <"${OPTION[jobs]}"
  ((JOBS)) || fail "--jobs=${OPTION[jobs]}: no job in it"
}

declare -A FOLDERS=()

# add_job WORD...: notes one job in a file of its own, its words ended by a zero byte.
add_job() {
  set_job "$@"
  # The report in a folder is of one job.
  [[ -z ${FOLDERS[$MODEL_DIR]:-} ]] ||
    fail "--jobs=${OPTION[jobs]}: two jobs with --model_dir=$MODEL_DIR"
  JOBS=$((JOBS + 1))
  FOLDERS[$MODEL_DIR]=1
  printf '%s\0' "$@" >"$SCRATCH/job-$JOBS"
}

# leave CODE: the end, however it comes. A signal before its first line begins it anew, which is
# why signals call it too: an `exit` there would end the script without the deletion.
leave() {
  local code="$1"
  # Nothing interrupts the deletion, also where the terminal or the reader of a pipe is gone.
  trap '' INT TERM HUP PIPE
  trap - EXIT
  if [[ -n $OWNED && -n ${OPTION[keep]} ]]; then
    warn "${OPTION[name]} is kept and costs money until $(deletion)" || true
  elif [[ -n $OWNED ]]; then
    say "deleting the slice" || true
    if delete_slice; then say "deleted" || true; else code=5; fi
  fi
  rm -rf "$SCRATCH"
  exit "$code"
}

parse_run "$@"
read_jobs
trap 'leave $?' EXIT
trap 'leave 130' INT
trap 'leave 143' TERM
trap 'leave 129' HUP
trap 'leave 141' PIPE
STARTS=0
for ((number = 1; number <= JOBS; number++)); do
  mapfile -d '' -t words <"$SCRATCH/job-$number"
  set_job "${words[@]}"
  check_access
  if [[ -z ${OPTION[again]}${OPTION[dry_run]} ]] && is_complete; then
    say "job: $MODEL_DIR is complete; --again runs it anyway"
    continue
  fi
  run_job
done
[[ -n $OWNED${OPTION[keep]}${OPTION[dry_run]} ]] || own_idle
