#!/usr/bin/env bash
# Runs one job at a time on a host of a TPU slice; run.sh starts it through ssh, on the first host
# or, where JAX computes, on all of them. Only the first one reports and deletes.
#
#   bash host_job.sh check_chips CHIPS
#       fails unless this host has so many chips
#   bash host_job.sh running
#       prints the number of the job that runs here and where it reports, or nothing
#   bash host_job.sh start REPORT ID MAX_SECONDS GRACE_SECONDS NODE ZONE PROJECT DELETE CHIPS \
#       WORD...
#       starts the command WORD... in the background, where it outlives the connection. CHIPS: of
#       each host where JAX computes; 0 for a command that drives the TPU from the first host
#
# While it runs, REPORT/status (on gs://) gets a line every minute:
#
#   id=ID state=RUNNING code=- quiet=SECONDS steps=STEPS time=EPOCH
#
# `quiet` is how long the command has printed nothing, `steps` how many it is to train for. At
# the end the state is FINISHED, with the command's exit code, or UNHEALTHY if the TPU cannot be
# used.
# REPORT/log-ID.txt is the output, and log-ID-host-N.txt that of host N. After MAX_SECONDS the
# command gets SIGTERM: it saves and ends with 143.
#
# The launcher deletes the slice at the end. If nobody has done so GRACE_SECONDS later, this
# script does, as DELETE says (queued, node or nothing): a slice costs money also after its
# job, and the machine of the launcher may be off.
set -euo pipefail

FOLDER="$HOME/decoupled_job"
HEARTBEAT="${DECOUPLED_TPU_HEARTBEAT:-60}"
# A log of days is long; on gs:// it is written anew each time.
HEARTBEATS_PER_LOG=10

STEPS=0

# check_chips CHIPS
check_chips() {
  local found
  found="$(find /dev -maxdepth 1 -name 'accel[0-9]*' | wc -l)"
  # Chips of later generations are vfio groups.
  ((found)) || found="$(find /dev/vfio -maxdepth 1 -name '[0-9]*' 2>/dev/null | wc -l || true)"
  ((found == $1)) && return
  echo "host_job.sh: error: $HOSTNAME has $found of $1 TPU chips: delete the slice and create" \
    "it again" >&2
  return 1
}

running_process() {
  local process
  [[ -f $FOLDER/process ]] || return 1
  process="$(<"$FOLDER/process")"
  # The number may have been given to another process since.
  [[ $(ps -o args= -p "$process" 2>/dev/null) == *"host_job.sh work"* ]] || return 1
  echo "$process"
}

running() {
  if running_process >/dev/null && [[ ! -f $FOLDER/ended ]]; then cat "$FOLDER/job"; fi
}

# find_host CHIPS: sets HOST to this host's number in the slice.
find_host() {
  local url=http://metadata.google.internal/computeMetadata/v1/instance/attributes
  HOST=0
  (($1)) || return 0
  HOST="$(curl --silent --fail --header 'Metadata-Flavor: Google' "$url/agent-worker-number")" || {
    echo "host_job.sh: error: the metadata server does not say which host this is" >&2
    exit 1
  }
}

start() {
  local process
  REPORT="$1" ID="$2"
  mkdir -p "$FOLDER"
  find_host "$9"
  if ((HOST == 0)) && [[ -n $(running) ]]; then
    echo "host_job.sh: error: a job runs here already: $(running)" >&2
    exit 2
  fi
  # One that only waits to delete the slice; or, on other hosts, what an earlier start left.
  if process="$(running_process)"; then kill -KILL -- "-$process"; fi
  rm -f "$FOLDER/ended"
  echo "$ID $REPORT" >"$FOLDER/job"
  : >"$FOLDER/driver.log"
  report STARTING - || {
    echo "host_job.sh: error: cannot write to $REPORT; the account of the TPU VM needs" \
      "roles/storage.objectAdmin on the bucket" >&2
    exit 2
  }
  nohup setsid bash "$0" work "$@" >"$FOLDER/work.log" 2>&1 </dev/null 3>&- &
  echo "$!" >"$FOLDER/process"
  echo "started $ID"
}

# report STATE CODE
report() {
  local now changed steps
  ((HOST == 0)) || return 0
  now="$(date +%s)"
  changed="$(stat -c %Y "$FOLDER/driver.log")"
  # Lines of progress say "step 100/2000".
  steps="$(tail -c 20000 "$FOLDER/driver.log" | grep -oE 'step [0-9]+/[0-9]+' | tail -n 1 || true)"
  [[ -z $steps ]] || STEPS="${steps#*/}"
  printf 'id=%s state=%s code=%s quiet=%s steps=%s time=%s\n' \
    "$ID" "$1" "$2" "$((now - changed))" "$STEPS" "$now" >"$FOLDER/status"
  gcloud storage cp "$FOLDER/status" "$REPORT/status"
}

save_log() {
  local name="log-$ID.txt"
  ((HOST == 0)) || name="log-$ID-host-$HOST.txt"
  gcloud storage cp "$FOLDER/driver.log" "$REPORT/$name" || echo "log not saved" >&2
}

# health SECONDS: waits so long for a healthy TPU, and returns tpu_health's code: 3 where it
# must be created anew, 4 where it is not healthy, others where nothing is known.
health() {
  if ((CHIPS)); then
    check_chips "$CHIPS" >>"$FOLDER/driver.log" 2>&1 || return 3
    return
  fi
  local flags=("--tpu=$NODE" "--tpu_zone=$ZONE" "--wait_seconds=$1")
  [[ -z $PROJECT ]] || flags+=("--gcp_project=$PROJECT")
  python3 -m decoupled tpu_health "${flags[@]}" >>"$FOLDER/driver.log" 2>&1
}

work() {
  REPORT="$1" ID="$2" NODE="$5" ZONE="$6" PROJECT="$7" CHIPS="$9"
  local max_seconds="$3" grace_seconds="$4" delete="$8" code=0
  shift 9
  find_host "$CHIPS"
  ((HOST == 0)) || delete=nothing
  health "${DECOUPLED_TPU_HEALTH_SECONDS:-600}" || code=$?
  # One that is only not healthy yet gets its chance.
  if ((code == 3)); then
    end UNHEALTHY - "$delete" "$grace_seconds"
    return
  fi
  cd
  "$@" >>"$FOLDER/driver.log" 2>&1 &
  code=0
  follow "$!" "$max_seconds" || code=$?
  end "$(verdict "$code")" "$code" "$delete" "$grace_seconds"
}

# verdict CODE: whether the TPU was at fault when the command ended.
verdict() {
  local code=0
  case "$1" in
    # Complete; a mistake of the user's; saved, and can be resumed.
    0 | 2 | 143) ;;
    *) health 0 || code=$? ;;
  esac
  if ((code == 3 || code == 4)); then echo UNHEALTHY; else echo FINISHED; fi
}

# follow PROCESS MAX_SECONDS: reports until the process ends; returns its exit code.
follow() {
  local beats=0 sleeper
  while kill -0 "$1" 2>/dev/null; do
    sleep "$HEARTBEAT" &
    sleeper=$!
    # An end wakes us up before the next beat.
    wait -n "$1" "$sleeper" || true
    kill "$sleeper" 2>/dev/null || true
    ((SECONDS < $2)) || kill -TERM "$1" 2>/dev/null || true
    kill -0 "$1" 2>/dev/null || break
    report RUNNING - || true
    ((++beats % HEARTBEATS_PER_LOG)) || save_log
  done
  wait "$1"
}

# end STATE CODE DELETE GRACE_SECONDS
end() {
  local project=()
  save_log
  touch "$FOLDER/ended"
  # Without this report the launcher would treat the slice as dead.
  report "$1" "$2" || { sleep "$HEARTBEAT" && report "$1" "$2"; } || true
  [[ -z $PROJECT ]] || project=("--project=$PROJECT")
  case "$3" in
    queued)
      sleep "$4"
      gcloud compute tpus queued-resources delete "$NODE" "--zone=$ZONE" "${project[@]}" \
        --force --quiet --async
      ;;
    node)
      sleep "$4"
      gcloud compute tpus tpu-vm delete "$NODE" "--zone=$ZONE" "${project[@]}" --quiet --async
      ;;
  esac
}

"$@"
