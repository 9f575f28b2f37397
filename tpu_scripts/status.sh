#!/usr/bin/env bash
# Shows the status of a slice and its job: the states of the queued resource and of the TPU VM,
# its health, the job's last report, the newest checkpoint and the end of the log.
#
#   tpu_scripts/status.sh --name=decoupled-1 --zone=us-central1-a --model_dir=gs://bucket/run
USES=(name zone project plain model_dir log internal_ip dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=slice.sh
source "$(dirname "$0")/slice.sh"
# shellcheck source=job.sh
source "$(dirname "$0")/job.sh"
parse "$@"
no_rest
need_slice
need_number log 5
REQUESTED=1
line() { printf '%-11s %s\n' "$1" "$2"; }

look
line slice "$STATE ($DETAIL${HEALTH:+, $HEALTH}${PROBLEM:+, $PROBLEM})"
[[ $STATE != READY ]] || line cost "from READY until delete.sh"
if [[ -n ${OPTION[model_dir]} ]]; then
  MODEL_DIR="${OPTION[model_dir]%/}"
  read_report
  line job "${REPORT_LINE:-no report in $MODEL_DIR}"
  line checkpoint "step $(saved_step)"
fi
if [[ $STATE == READY ]]; then
  on_worker 0 ssh "${OPTION[name]}" \
    "--command=$(quoted tail -n "${OPTION[log]}" decoupled_job/driver.log)"
  run "${COMMAND[@]}" || true
fi
