#!/usr/bin/env bash
# Deletes a slice: its queued resource and its TPU VM, whichever exists, and with them its
# disk; gs:// stays. Refuses resources without the label project=decoupled.
#
#   tpu_scripts/delete.sh --name=decoupled-1 --zone=us-central1-a
USES=(name zone project force dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=slice.sh
source "$(dirname "$0")/slice.sh"
parse "$@"
no_rest
need_slice

found=''
for group in queued-resources tpu-vm; do
  OPTION[plain]="$([[ $group == queued-resources ]] || echo 1)"
  REQUESTED=1
  if queued; then fields="$QUEUE_FIELDS"; else fields="$NODE_FIELDS"; fi
  look_at "$group" "$fields" READY
  [[ $STATE != ABSENT ]] || continue
  [[ $STATE != UNKNOWN ]] || fail "cannot tell what there is: $DETAIL"
  [[ $LABEL == "$PROJECT_LABEL" ]] ||
    refuse "${OPTION[name]} has no label project=$PROJECT_LABEL: not made by these scripts"
  found=1
  delete_slice
done
[[ -n $found ]] || fail "${OPTION[name]}: nothing of that name in ${OPTION[zone]}; see list.sh"
[[ -n ${OPTION[dry_run]} ]] || say "deleted"
