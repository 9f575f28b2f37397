# shellcheck shell=bash disable=SC2034  # variables are for the scripts that source this
# Sourced after common.sh: one job, a command of the package that trains to MODEL_DIR on
# gs://, and what it reports there.

# The flags that commands need beside --model_dir.
declare -A NEEDED=(
  [pretrain]='records_dir vocabulary' [finetune]='task data_dir init_checkpoint'
)

without_slashes() {
  printf '%s' "${1%"${1##*[!/]}"}"
}

# set_job WORD...: the command (pretrain, finetune, ...) and its flags, which are checked here,
# before a slice costs anything.
set_job() {
  local flag
  DRIVER="${1:-}" FLAGS=("${@:2}") MODEL_DIR=''
  [[ $DRIVER =~ ^[a-z][a-z_0-9]*$ ]] ||
    fail "'$DRIVER': a job starts with a command of the package, e.g. pretrain"
  [[ -n ${NEEDED[$DRIVER]:-} ]] ||
    refuse "$DRIVER: trains nothing on a TPU, as pretrain and finetune do"
  for flag in "${FLAGS[@]}"; do
    case "$flag" in
      --model_dir=*) MODEL_DIR="${flag#*=}" ;;
      --*_dir=* | --vocabulary=* | --init_checkpoint=* | --branch_from=*)
        need_remote "${flag%%=*}" "${flag#*=}"
        ;;
      --gin_file=gs://?*) ;;
      --gin_file=*)
        [[ -f $HERE/../gin/${flag#*=} ]] || refuse "$flag: neither in gin/ nor on gs://"
        ;;
      # After -- it would be the job's, and this one costs.
      --dry-run | --dry_run) fail "$flag must stand before --" ;;
    esac
  done
  [[ -n $MODEL_DIR ]] || fail "$*: --model_dir=gs://... must be among its flags"
  [[ $MODEL_DIR == gs://?* ]] ||
    fail "--model_dir=$MODEL_DIR: must be on gs://; the disk of a slice is gone when it is"
  MODEL_DIR="$(without_slashes "$MODEL_DIR")"
  for flag in ${NEEDED[$DRIVER]:-}; do
    [[ " ${FLAGS[*]}" == *" --$flag="* ]] ||
      fail "$DRIVER to $MODEL_DIR: --$flag=... must be among its flags"
  done
  if [[ $DRIVER == finetune ]] && by_estimator && several_hosts; then
    fail "finetune: TPUEstimator fine-tunes on one host, ${OPTION[type]} has several; \
--version=tpu-ubuntu2204-base has JAX, which uses all"
  fi
}

# job_words: makes WORDS the job's command line.
job_words() {
  local entry flags=()
  WORDS=(env)
  # A program on one host drives its cores itself; on several hosts TPUEstimator finds them by
  # name, each behind a server of the image's, and must not take those of its own host first.
  if by_estimator && several_hosts; then WORDS+=(TPU_LOAD_LIBRARY=0); fi
  while IFS= read -r entry; do
    [[ -z $entry ]] || WORDS+=("$entry")
  done <<<"${OPTION[env]}"
  if ! by_estimator; then
    WORDS+=(decoupled_env/bin/python)
    flags=(--accelerator=tpu)
  else
    WORDS+=(python3)
    flags=(--tpu=local)
    if several_hosts; then
      flags=("--tpu=${OPTION[name]}" "--tpu_zone=${OPTION[zone]}")
      [[ -z ${OPTION[project]} ]] || flags+=("--gcp_project=${OPTION[project]}")
    fi
  fi
  [[ " ${FLAGS[*]}" != *" ${flags[0]%=*}="* ]] || flags=()
  WORDS+=(-m decoupled "$DRIVER" "${FLAGS[@]}" "${flags[@]}")
}

# job_sum: a checksum of the command and its flags, with what every system has.
job_sum() {
  local sum
  sum="$(printf '%s\0' "$DRIVER" "${FLAGS[@]}" | cksum)"
  echo "${sum%% *}"
}

# is_of_job ID: the report with this ID, which ends in a checksum, is of this job and not of
# another command to its folder. The IDs of earlier versions have no checksum.
is_of_job() {
  [[ $1 != *-*-*-* || $1 == *-"$(job_sum)" ]]
}

report_folder() {
  echo "$MODEL_DIR/tpu_job"
}

# read_report: sets REPORT_LINE and its fields JOB_ID, JOB_STATE, JOB_CODE, JOB_QUIET, JOB_STEPS.
read_report() {
  local field
  REPORT_LINE='' JOB_ID='' JOB_STATE='' JOB_CODE='' JOB_QUIET=0 JOB_STEPS=0
  ask "id=${RUN_ID:-dry} state=FINISHED code=0 quiet=0 steps=0 time=0" \
    gcloud storage cat "$(report_folder)/status" || return 0
  REPORT_LINE="${ANSWER%%$'\n'*}"
  for field in $REPORT_LINE; do
    case "$field" in
      id=*) JOB_ID="${field#*=}" ;;
      state=*) JOB_STATE="${field#*=}" ;;
      code=*) JOB_CODE="${field#*=}" ;;
      quiet=*) JOB_QUIET="${field#*=}" ;;
      steps=*) JOB_STEPS="${field#*=}" ;;
    esac
  done
  [[ $JOB_QUIET =~ ^[0-9]+$ ]] || JOB_QUIET=0
  [[ $JOB_STEPS =~ ^[0-9]+$ ]] || JOB_STEPS=0
}

# check_access: reads the report, and ends where that is not allowed.
check_access() {
  read_report
  case "${ERRORS,,}" in
    # Nothing is there yet. The names that follow may have any words and digits.
    *"matched no objects"*) ;;
    *"error 40"[134]* | *": 40"[134]* | *permission*denied* | *"does not have"* | \
      *"active account selected"* | *"auth login"*)
      fail "$MODEL_DIR: cannot be read (${ERRORS//$'\n'/ })"
      ;;
  esac
}

# newest_steps: the steps of the newest checkpoints of the lists in ANSWER.
newest_steps() {
  sed -n 's/^model_checkpoint_path: ".*-\([0-9]*\)"$/\1/p' <<<"$ANSWER"
}

# saved_step: the step of the newest checkpoint, 0 where there is none.
saved_step() {
  local step=''
  if ask 'model_checkpoint_path: "model.ckpt-0"' gcloud storage cat "$MODEL_DIR/checkpoint"; then
    step="$(newest_steps)"
  fi
  echo "${step:-0}"
}

# saved_steps: the same; of several rates or seeds, which have folders of their own, the sum.
saved_steps() {
  local step sum
  sum="$(saved_step)"
  if [[ $DRIVER == finetune ]] && ((sum == 0)); then
    ask '' gcloud storage cat "$MODEL_DIR/learning_rate_*/seed_*/checkpoint" || true
    for step in $(newest_steps); do sum=$((sum + step)); done
  fi
  echo "$sum"
}

# is_complete: whether this job is, by the report. The checkpoint decides: a command may end with
# another code when it leaves the other hosts, or with 0 too early.
is_complete() {
  local step
  is_of_job "$JOB_ID" || return 1
  [[ $JOB_STATE == FINISHED && $JOB_CODE =~ ^[0-9]+$ && ! $JOB_CODE =~ ^(2|143)$ ]] || return 1
  step="$(saved_step)"
  if ((JOB_CODE == 0)); then
    # A folder of several runs has no checkpoint of its own.
    ((step == 0 || step >= JOB_STEPS)) || has_results "$step"
  else
    ((JOB_STEPS > 0 && step >= JOB_STEPS)) && has_results "$step"
  fi
}

# has_results STEP: the results of this checkpoint, which a command writes last, are there.
has_results() {
  local name
  for name in eval.json results.json; do
    ask '' gcloud storage cat "$MODEL_DIR/$name" || continue
    [[ $ANSWER =~ \"global_step\":\ ([0-9]+) && ${BASH_REMATCH[1]} == "$1" ]] && return
  done
  return 1
}
