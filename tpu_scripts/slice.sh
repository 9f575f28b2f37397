# shellcheck shell=bash disable=SC2034  # variables are for the scripts that source this
# Sourced after common.sh: the life of one slice, a TPU VM of one or several hosts, and of
# the queued resource that it comes from.

QUEUE_FIELDS='state.state,tpu.nodeSpec[0].node.labels.project,state.failedData.error.message'
NODE_FIELDS='state,labels.project,health'
DELETE_ATTEMPTS=3

queued() {
  [[ -z ${OPTION[plain]} ]]
}

# deletion: what to type to delete the slice.
deletion() {
  echo "delete.sh --name=${OPTION[name]} --zone=${OPTION[zone]}"
}

# trouble_of TEXT: what gcloud's message is about, in one word.
trouble_of() {
  case "${1,,}" in
    # A limit on calls of the API, not on TPUs.
    *"per minute"*) echo passing ;;
    *"quota limit"* | *quota*exceed* | *exceed*quota* | *"not enough quota"*) echo quota ;;
    *"no more capacity"* | *insufficient*capacity* | *stockout*) echo capacity ;;
    *resource_exhausted* | *"resource exhausted"*) echo capacity ;;
    *permission_denied* | *unauthenticated*) echo refused ;;
    # Digits alone may be part of a name.
    *not_found* | *"was not found"* | *"no urls matched"*) echo absent ;;
    *"error 404"* | *"code: 404"* | *"status 404"*) echo absent ;;
    # Messages also name "the active account specified by" a property.
    *"active account selected"* | *"auth login"*) echo refused ;;
    *unavailable* | *deadline* | *internal* | *timed\ out* | *connection*) echo passing ;;
    *) echo refused ;;
  esac
}

# meaning STATE: of a queued resource or of a node, for what can be done next.
meaning() {
  case "$1" in
    READY | ACTIVE) echo READY ;;
    CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING) echo WAITING ;;
    STARTING | RESTARTING | REIMAGING | REPAIRING) echo WAITING ;;
    # None of these comes back by itself.
    PREEMPTED | TERMINATED | STOPPING | STOPPED | HIDING | HIDDEN) echo GONE ;;
    FAILED | SUSPENDING | SUSPENDED) echo GONE ;;
    DELETING) echo DELETING ;;
    *) echo UNKNOWN ;;
  esac
}

# describe GROUP FIELDS CANNED: the fields in ANSWER, with | between them.
describe() {
  in_zone "$1" describe "${OPTION[name]}" "--format=value[separator=\"|\"]($2)"
  ask "$3" "${COMMAND[@]}"
}

# look: sets STATE to ABSENT, WAITING, READY, GONE, DELETING or UNKNOWN; DETAIL to gcloud's
# word for it, LABEL to the label `project`, HEALTH, and PROBLEM to why a request failed.
look() {
  STATE=UNKNOWN DETAIL='' LABEL='' HEALTH='' PROBLEM=''
  if queued; then
    look_at queued-resources "$QUEUE_FIELDS" ACTIVE
    PROBLEM="$LAST"
    [[ $STATE == READY ]] || return 0
    # The request is served; whether the node still stands, only the node knows.
    local label="$LABEL"
    look_at tpu-vm "$NODE_FIELDS" READY
    LABEL="${LABEL:-$label}"
    [[ $STATE != ABSENT ]] || STATE=WAITING
  else
    look_at tpu-vm "$NODE_FIELDS" READY
  fi
  HEALTH="$LAST"
}

# look_at GROUP FIELDS CANNED_STATE: sets STATE, DETAIL, LABEL, and LAST to the last field.
look_at() {
  LAST=''
  # Nothing is there in a dry run until it was requested.
  if [[ -n ${OPTION[dry_run]} && -z ${REQUESTED:-} ]]; then
    describe "$1" "$2" ''
    STATE=ABSENT
  elif describe "$1" "$2" "$3|$PROJECT_LABEL|"; then
    IFS='|' read -r DETAIL LABEL LAST <<<"$ANSWER" || true
    STATE="$(meaning "$DETAIL")"
  elif [[ $(trouble_of "$ERRORS") == absent ]]; then
    STATE=ABSENT
  else
    STATE=UNKNOWN DETAIL="${ERRORS##*$'\n'}"
  fi
}

labels() {
  local owner="${USER:-unknown}"
  owner="${owner,,}"
  echo "project=$PROJECT_LABEL,owner=${owner//[^a-z0-9_-]/-}"
}

# creation: makes COMMAND what requests the slice.
creation() {
  local name="${OPTION[name]}" extra
  if queued; then
    in_zone queued-resources create "$name" "--node-id=$name" \
      "--runtime-version=$(runtime_version)"
    [[ -z ${OPTION[valid_until]} ]] ||
      COMMAND+=("--valid-until-duration=${OPTION[valid_until]}")
  else
    in_zone tpu-vm create "$name" "--version=$(runtime_version)"
  fi
  COMMAND+=("--accelerator-type=${OPTION[type]}" "--labels=$(labels)")
  [[ -z ${OPTION[service_account]} ]] ||
    COMMAND+=("--service-account=${OPTION[service_account]}")
  [[ -z ${OPTION[scopes]} ]] || COMMAND+=("--scopes=${OPTION[scopes]}")
  [[ -z ${OPTION[internal_ip]} ]] || COMMAND+=(--internal-ips)
  [[ -z ${OPTION[spot]} ]] || COMMAND+=(--spot)
  while IFS= read -r extra; do
    [[ -z $extra ]] || COMMAND+=("$extra")
  done <<<"${OPTION[create_arg]}"
}

# request: creates the slice or queues for it. Status 1: TROUBLE says what was in the way.
request() {
  TROUBLE=''
  creation
  REQUESTED=1
  local code=0
  run "${COMMAND[@]}" 2>"$SCRATCH/request" || code=$?
  cat "$SCRATCH/request" >&2
  ((code)) || return 0
  TROUBLE="$(trouble_of "$(<"$SCRATCH/request")")"
  return 1
}

# quota_message: what to do about a quota, in one line.
quota_message() {
  local kind="${OPTION[spot]:+preemptible }"
  echo "the quota for ${kind}${OPTION[type]} in ${OPTION[zone]} does not allow this slice; \
ask for more at https://console.cloud.google.com/iam-admin/quotas, or use another --type or \
--zone, or ${OPTION[spot]:+no }--spot, whose quota is another"
}

# delete_one GROUP WORD...: deletes the queued resource or the node; no harm if it is gone.
delete_one() {
  local attempt
  in_zone "$1" delete "${OPTION[name]}" "${@:2}" --quiet
  for ((attempt = 1; attempt <= DELETE_ATTEMPTS; attempt++)); do
    if [[ -n ${OPTION[dry_run]} ]]; then show "${COMMAND[@]}"; return 0; fi
    # Below a trap, `return` alone would return the status from before the trap.
    "${COMMAND[@]}" 2>"$SCRATCH/delete" && return 0
    [[ $(trouble_of "$(<"$SCRATCH/delete")") != absent ]] || return 0
    cat "$SCRATCH/delete" >&2
    sleep "${DECOUPLED_TPU_POLL:-30}"
  done
  echo "$(basename "$0"): NOT DELETED, and it may cost money: $(quoted "${COMMAND[@]}")" >&2
  return 1
}

# delete_slice: deletes the slice with its request, and waits until that is done.
delete_slice() {
  # Without --force a request that has a node stays.
  if queued; then delete_one queued-resources --force; else delete_one tpu-vm; fi
}
