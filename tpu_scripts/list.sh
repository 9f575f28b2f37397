#!/usr/bin/env bash
# Lists the queued resources and the TPU VMs of this project, with their state and owner. A
# TPU VM costs money from READY until it is deleted.
#
#   tpu_scripts/list.sh --zones=us-central1-a,europe-west4-a
#   tpu_scripts/list.sh --zones=-
USES=(zones zone project dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
no_rest
zones="${OPTION[zones]:-${OPTION[zone]}}"
[[ -n $zones ]] || fail "--zones must be given, e.g. --zones=us-central1-a, or --zones=-"

node='tpu.nodeSpec[0].node'
name='name.basename():label=NAME,name.segment(-3):label=ZONE'
request="$name,$node.acceleratorType:label=TYPE,state.state:label=STATE"
request+=",$node.labels.owner:label=OWNER,createTime:label=CREATED"
machine="$name,acceleratorType.basename():label=TYPE,state:label=STATE"
machine+=',health:label=HEALTH,labels.owner:label=OWNER,createTime:label=CREATED'

IFS=',' read -r -a listed <<<"$zones"
for zone in "${listed[@]}"; do
  OPTION[zone]="$zone"
  in_zone queued-resources list "--filter=$node.labels.project=$PROJECT_LABEL" \
    "--format=table[title=\"Queued resources\"]($request)"
  run "${COMMAND[@]}"
  in_zone tpu-vm list "--filter=labels.project=$PROJECT_LABEL" \
    "--format=table[title=\"TPU VMs\"]($machine)"
  run "${COMMAND[@]}"
done
