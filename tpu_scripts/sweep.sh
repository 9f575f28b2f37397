#!/usr/bin/env bash
# Runs many jobs, e.g. rows of a table or seeds of a task, on one slice or on several at once.
# The file holds a line per job, the command and its flags, each with a --model_dir of its own;
# single quotes work as in a shell, and a line that starts with # is a comment:
#
#   pretrain --gin_file=models/e_out_128.gin --model_dir=gs://bucket/e_out_128 ...
#   finetune --task=xnli --gin_param='TrainingConfig.seed = 2' --model_dir=gs://bucket/seed_2 ...
#
#   tpu_scripts/sweep.sh --name=rows --zone=us-central1-a --type=v5litepod-32 --spot \
#       --jobs=rows.txt --slices=2
#
# decoupled sweep --print_jobs prints such lines for a table of the paper. The jobs
# of a slice run one after another, in their order; they go to NAME-0, NAME-1, ... in turn, but
# a job whose --init_checkpoint or --branch_from is the --model_dir of another, or is in it, goes
# to the same slice, behind it: its line must stand behind that one's.
# When started again, it skips complete jobs. A slice stops at a job that ends with an error;
# the others continue. The exit code is the highest of theirs (see run.sh --help).
USES=(name zone type version project service_account scopes create_arg internal_ip spot
  plain valid_until package jobs slices again env max_attempts max_hours stall_minutes keep
  force dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=job.sh
source "$(dirname "$0")/job.sh"
parse "$@"
no_rest
need_slice
need jobs rows.txt
need_number slices 1
slices="${OPTION[slices]}"
((slices >= 1)) || fail "--slices=0: at least one"
[[ -r ${OPTION[jobs]} ]] || fail "--jobs=${OPTION[jobs]}: cannot be read"

check_runtime
# The lines that are jobs.
sed $'1s/^\xef\xbb\xbf//' <"${OPTION[jobs]}" | tr -d '\r' |
  grep -v -e '^[[:space:]]*#' -e '^[[:space:]]*$' >"$SCRATCH/jobs" ||
  fail "--jobs=${OPTION[jobs]}: no job in it"
options=()
for option in "${GIVEN[@]}"; do
  case "$option" in --name=* | --jobs=* | --slices=*) ;; *) options+=("$option") ;; esac
done
# In turn, but a job goes where the one runs whose checkpoint it starts from. `reader_of` has the
# folders that no earlier job has written, and a job that starts from there.
declare -A slice_of=() reader_of=()
turn=0
while IFS= read -r line; do
  split_job "$line"
  set_job "${JOB_LINE[@]}"
  sources=() slice=''
  for word in "${FLAGS[@]}"; do
    case "$word" in
      --init_checkpoint=* | --branch_from=*)
        sources+=("$(without_slashes "${word#*=}")")
        ;;
    esac
  done
  [[ -z ${slice_of[$MODEL_DIR]:-} ]] ||
    fail "--jobs=${OPTION[jobs]}: two jobs with --model_dir=$MODEL_DIR"
  [[ -z ${reader_of[$MODEL_DIR]:-} ]] || fail "--jobs=${OPTION[jobs]}: a job starts from \
--model_dir=$MODEL_DIR of a later one; move it behind that: ${reader_of[$MODEL_DIR]}"
  for from in "${sources[@]}"; do
    while [[ $from == gs://?* && -z ${slice_of[$from]:-} ]]; do
      reader_of[$from]="$line"
      from="${from%/*}"
    done
    [[ $from == gs://?* ]] || continue
    slice="${slice:-${slice_of[$from]}}"
    [[ $slice == "${slice_of[$from]}" ]] || fail "--jobs=${OPTION[jobs]}: a job starts from jobs \
of two slices; use --slices=1: $line"
  done
  [[ -n $slice ]] || slice=$((turn++ % slices))
  slice_of[$MODEL_DIR]="$slice"
  printf '%s\n' "$line" >>"$SCRATCH/jobs-$slice"
done <"$SCRATCH/jobs"

children=()
# shellcheck disable=SC2329  # called by traps
stop() {
  trap '' INT TERM HUP
  # Each deletes its slice. The signal may have come before `children` has the last.
  # shellcheck disable=SC2046  # numbers
  kill -TERM $(jobs -p) 2>/dev/null || true
  wait
  rm -rf "$SCRATCH"
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP
for ((slice = 0; slice < slices; slice++)); do
  [[ -s $SCRATCH/jobs-$slice ]] || continue
  "$HERE/run.sh" "--name=${OPTION[name]}-$slice" "--jobs=$SCRATCH/jobs-$slice" \
    "${options[@]}" &
  children+=("$!")
done
worst=0
for child in "${children[@]}"; do
  code=0
  wait "$child" || code=$?
  ((code <= worst)) || worst="$code"
done
exit "$worst"
