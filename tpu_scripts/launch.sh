# shellcheck shell=bash disable=SC2034  # variables are for the scripts that source this
# Sourced after common.sh, slice.sh and job.sh: a job to its end, on as many slices as it
# takes. OUTCOME says how the last start of the job ended.

POLL="${DECOUPLED_TPU_POLL:-60}"
BACKOFF="${DECOUPLED_TPU_BACKOFF:-30}"
LONGEST_BACKOFF=1800
# Without a new report for so long, the host is treated as dead.
SILENT_SECONDS="${DECOUPLED_TPU_SILENT:-900}"
# After that, a slice whose job has ended deletes itself, because its launcher is gone.
GRACE_SECONDS="${DECOUPLED_TPU_GRACE:-1800}"
# The job ends so long before this script, so that it can save while its slice exists.
SAVE_SECONDS="${DECOUPLED_TPU_SAVE:-600}"
# How often in a row gcloud may fail to say how the slice is.
MOST_UNKNOWN=30
# Whether the slice is ours to delete, was created here, and has the package installed.
OWNED='' CREATED='' READY_HOST='' UNANSWERED=0

within_hours() {
  ((SECONDS < MAX_SECONDS))
}

# pause SECONDS: a sleep that a signal ends at once.
pause() {
  [[ -n ${OPTION[dry_run]} ]] && return
  # It must not hold our output open where we end before it.
  sleep "$1" >/dev/null 2>&1 3>&- &
  wait "$!"
}

# own: the slice is one of ours, and deleted at the end.
own() {
  if [[ $LABEL != "$PROJECT_LABEL" ]]; then
    fail "${OPTION[name]} exists without the label project=$PROJECT_LABEL; choose another --name"
  fi
  OWNED=1
}

# ensure: waits for a READY slice, creating it where there is none. Status 1: see OUTCOME.
ensure() {
  local before='' unknown=0
  while :; do
    within_hours || { OUTCOME=overtime; return 1; }
    look
    [[ "$STATE $DETAIL" == "$before" ]] || say "slice: $STATE ${DETAIL:+($DETAIL)}"
    before="$STATE $DETAIL"
    [[ $STATE == UNKNOWN ]] || unknown=0
    case "$STATE" in
      READY) own; return ;;
      WAITING) own ;;
      ABSENT) READY_HOST=''; create || return 1; continue ;;
      GONE) own; lost "$DETAIL ${PROBLEM}"; return 1 ;;
      UNKNOWN)
        # The first answer shows whether gcloud may ask at all.
        [[ -n $OWNED${REQUESTED:-} ]] || fail "cannot tell what there is: $DETAIL"
        ((++unknown < MOST_UNKNOWN)) || { OUTCOME=unreachable; return 1; }
        ;;
    esac
    pause "$POLL"
  done
}

create() {
  # From the request on there may be something to delete, unless it was clearly not met.
  OWNED=1
  request && CREATED=1 && return
  case "$TROUBLE" in
    quota) OUTCOME=quota OWNED='' ;;
    capacity) OUTCOME=no_room OWNED='' ;;
    passing) OUTCOME=no_room ;;
    *) OUTCOME=not_created ;;
  esac
  return 1
}

lost() {
  OUTCOME=lost READY_HOST=''
  [[ $(trouble_of "$1") != quota ]] || OUTCOME=quota
  say "slice lost: $1"
}

# start: leaves the job running on the slice, or sets OUTCOME and returns 1.
start() {
  # After a restart of this script, the job may have been running all the time.
  if [[ -z $READY_HOST$CREATED ]]; then
    # No answer does not mean that no job runs there, unless there is none again and again.
    if ! running_job; then
      OUTCOME=not_asked
      ((++UNANSWERED < 3)) || lost "its host does not answer"
      return 1
    fi
    if [[ -n $ANSWER ]]; then adopt "$ANSWER"; return; fi
  fi
  if [[ -z $READY_HOST ]] && ! install; then
    OUTCOME=not_installed
    return 1
  fi
  READY_HOST=1
  local seconds=$((MAX_SECONDS - SECONDS - SAVE_SECONDS))
  ((seconds > 0)) || { OUTCOME=overtime; return 1; }
  RUN_ID="$(date -u +%Y%m%dT%H%M%S)-$$-$((++STARTS))-$(job_sum)"
  job_words
  local delete=queued
  queued || delete=node
  [[ -z ${OPTION[keep]} ]] || delete=nothing
  local chips=0 code=0 start
  by_estimator || chips="$(chips)"
  start="$(quoted bash host_job.sh start "$(report_folder)" "$RUN_ID" "$seconds" \
    "$GRACE_SECONDS" "${OPTION[name]}" "${OPTION[zone]}" "${OPTION[project]}" "$delete" \
    "$chips" "${WORDS[@]}")"
  on_worker 0 ssh "${OPTION[name]}" "--command=$start"
  run "${COMMAND[@]}" || code=$?
  ((code != 2)) || fail "the job cannot be started; the slice says why above"
  # For several hosts gcloud does not pass their exit codes on.
  if ((code == 0)) && [[ $(workers) == all ]]; then
    on_worker "1-$(($(hosts) - 1))" ssh "${OPTION[name]}" "--command=$start"
    run "${COMMAND[@]}" || code=$?
  fi
  ((code == 0)) || { OUTCOME=not_started; return 1; }
}

# running_job: sets ANSWER to what runs on the slice. Status 1: the slice does not answer.
running_job() {
  on_worker 0 ssh "${OPTION[name]}" \
    "--command=test ! -f host_job.sh || bash host_job.sh running"
  ask '' "${COMMAND[@]}"
}

# own_idle: owns a slice of ours where no job runs, which a launcher that is gone has left.
own_idle() {
  look
  case "$STATE $LABEL" in
    "WAITING $PROJECT_LABEL" | "GONE $PROJECT_LABEL") OWNED=1 ;;
    "READY $PROJECT_LABEL")
      if ! running_job; then
        warn "${OPTION[name]} does not answer; it costs money until $(deletion)"
      elif [[ -z $ANSWER ]]; then
        OWNED=1
      fi
      ;;
    UNKNOWN*) warn "${OPTION[name]} may be there: $DETAIL" ;;
  esac
}

adopt() {
  if [[ "${1#* }" != "$(report_folder)" ]] || ! is_of_job "${1%% *}"; then
    OWNED=''
    fail "${OPTION[name]} runs another job, which reports to ${1#* }"
  fi
  RUN_ID="${1%% *}" READY_HOST=1
  say "following job $RUN_ID, which runs already"
}

install() {
  local options=("--name=${OPTION[name]}" "--zone=${OPTION[zone]}") name
  for name in project package type version; do
    [[ -z ${OPTION[$name]} ]] || options+=("--$name=${OPTION[$name]}")
  done
  for name in internal_ip dry_run; do
    [[ -z ${OPTION[$name]} ]] || options+=("--$name")
  done
  "$HERE/install.sh" "${options[@]}" >&3
}

# follow: watches job and slice to the end of either; sets OUTCOME.
follow() {
  local before='' since=$SECONDS unknown=0
  while :; do
    read_report
    if [[ $JOB_ID == "$RUN_ID" ]] && job_ended; then return; fi
    [[ $REPORT_LINE == "$before" ]] || since=$SECONDS
    before="$REPORT_LINE"
    look
    case "$STATE" in
      READY | WAITING) unknown=0 ;;
      UNKNOWN) ((++unknown < MOST_UNKNOWN)) || { OUTCOME=unreachable; return; } ;;
      *) lost "$DETAIL"; return ;;
    esac
    if ((SECONDS - since > SILENT_SECONDS)); then
      lost "no report for $SILENT_SECONDS s"
      return
    elif [[ $JOB_ID == "$RUN_ID" ]] && ((JOB_QUIET > STALL_SECONDS)); then
      lost "the job hangs: it printed nothing for $JOB_QUIET s"
      return
    fi
    within_hours || { OUTCOME=overtime; return; }
    pause "$POLL"
  done
}

# job_ended: sets OUTCOME if it has.
job_ended() {
  case "$JOB_STATE $JOB_CODE" in
    FINISHED*) ;;
    UNHEALTHY*) lost 'its TPU is not healthy'; return ;;
    *) return 1 ;;
  esac
  OUTCOME=crashed
  if is_complete; then OUTCOME=complete; return; fi
  case "$JOB_CODE" in
    2) OUTCOME=mistake ;;
    # JAX's errors of memory, compiler and input, which another try would repeat.
    1) by_estimator || OUTCOME=failed ;;
    # Saved after SIGTERM.
    143) OUTCOME=stopped ;;
  esac
}

show_log() {
  ask '' gcloud storage cat "$(report_folder)/log-$RUN_ID.txt" || return 0
  printf '%s\n' "--- the end of $(report_folder)/log-$RUN_ID.txt" \
    "$(tail -n 20 <<<"$ANSWER")" '---' >&2
}

# run_job: one job to its end, on as many slices as it takes.
run_job() {
  local without=0 crashes=0 step before
  before="$(saved_steps)"
  while :; do
    OUTCOME=''
    say "job: $DRIVER to $MODEL_DIR from step $before"
    if ensure && start; then follow; fi
    case "$OUTCOME" in
      complete) say "job: complete at step $(saved_step)"; return ;;
      quota) fail "$(quota_message)" 3 ;;
      not_created) fail "the slice was not created; gcloud says why above" ;;
      overtime) fail "not complete after --max_hours=${OPTION[max_hours]}" 4 ;;
      unreachable) fail "gcloud could not say $MOST_UNKNOWN times how the slice is" 4 ;;
      mistake) show_log; fail "the job ended with a mistake in its settings or data" ;;
      failed) show_log; fail "the job ended with code 1, which another try would not change" 4 ;;
      crashed) show_log ;;
    esac
    step="$(saved_steps)"
    if ((step > before)); then without=0 crashes=0; else ((++without)); fi
    before="$step"
    [[ $OUTCOME != crashed ]] || ((++crashes < 2)) ||
      fail "the job ended with code $JOB_CODE, twice at step $step" 4
    ((without < MAX_ATTEMPTS)) ||
      fail "$without starts in a row left no new checkpoint; the last ended: $OUTCOME" 4
    say "job: $OUTCOME at step $step; start $((STARTS + 1)) follows"
    renew "$without"
  done
}

# renew TIMES: deletes what cannot be used again, and waits longer after every failure.
renew() {
  local seconds=$((BACKOFF << ($1 < 8 ? $1 : 8)))
  case "$OUTCOME" in
    lost | not_installed | not_started)
      delete_slice || exit 5
      READY_HOST=''
      ;;
  esac
  pause "$((seconds < LONGEST_BACKOFF ? seconds : LONGEST_BACKOFF))"
}
