#!/usr/bin/env bash
# Copies a run (checkpoints, results, TensorBoard events, logs) from gs:// to a folder here.
# It copies only what is new: run it again as training continues.
#
#   tpu_scripts/fetch.sh --from=gs://bucket/rembert --to=runs/rembert --no_checkpoints
USES=(from to no_checkpoints dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
no_rest
need from gs://bucket/rembert
need to runs/rembert
[[ ${OPTION[from]} == gs://?* ]] || fail "--from=${OPTION[from]}: not on gs://"
[[ ${OPTION[to]} != gs://* ]] || fail "--to=${OPTION[to]}: must be a folder here"
command=(gcloud storage rsync --recursive "${OPTION[from]%/}" "${OPTION[to]}")
# A regular expression of Python's, on names below the folder.
[[ -z ${OPTION[no_checkpoints]} ]] || command+=('--exclude=(.*/)?model\.ckpt-.*')
run mkdir -p "${OPTION[to]}"
run "${command[@]}"
