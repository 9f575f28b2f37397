#!/usr/bin/env bash
# Requests a TPU slice as a queued resource: it waits in a queue, which costs nothing, until
# there is capacity. --plain creates the node at once instead. A slice costs money from its
# creation until delete.sh. Everything is labelled, so that list.sh finds it.
#
#   tpu_scripts/create.sh --name=decoupled-1 --zone=us-central1-a --type=v3-8 --spot --wait
#
# Exit codes: 0 created or requested, 2 refused, 3 no quota, 4 no capacity, or lost while waiting.
USES=(name zone type version project service_account scopes create_arg internal_ip spot
  plain valid_until wait force dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=slice.sh
source "$(dirname "$0")/slice.sh"
parse "$@"
no_rest
need_slice
check_runtime

# interrupted CODE: from the request on there may be something that costs.
interrupted() {
  warn "the request stays, and costs money once it is served, until $(deletion)"
  exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
trap 'interrupted 129' HUP

request || case "$TROUBLE" in
  quota) fail "$(quota_message)" 3 ;;
  capacity) fail "no capacity for ${OPTION[type]} in ${OPTION[zone]} now; try later or elsewhere" 4 ;;
  passing)
    # The answer may be lost, and not the request.
    look
    [[ "$STATE $LABEL" =~ ^(WAITING|READY)\ $PROJECT_LABEL$ ]] || fail "no answer, see above; \
${OPTION[name]} may exist and cost money: status.sh shows it, and $(deletion) deletes it"
    say "it was requested all the same"
    ;;
  *) fail "not created; gcloud says why above" ;;
esac
[[ -n ${OPTION[wait]} ]] || exit 0
before='' absent=0
while look && [[ $STATE != READY ]]; do
  [[ $DETAIL == "$before" ]] || say "$DETAIL"
  before="$DETAIL"
  # The service may learn of a new request a little later.
  [[ $STATE == ABSENT ]] || absent=0
  ((++absent <= 5)) || fail "the request is gone: something else has deleted it" 4
  if [[ $STATE == GONE ]]; then
    [[ $(trouble_of "$PROBLEM") != quota ]] || fail "$(quota_message)" 3
    fail "$DETAIL: ${PROBLEM:-it was taken away}; delete.sh removes it from the list" 4
  fi
  sleep "${DECOUPLED_TPU_POLL:-30}"
done
say "READY: it costs money until $(deletion)"
