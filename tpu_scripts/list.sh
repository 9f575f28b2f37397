#!/usr/bin/env bash
# Lists the TPU VMs of this project in a zone, with their state: what is still paid for.
#
#   tpu_scripts/list.sh --zone=us-central1-a
source "$(dirname "$0")/common.sh"
tpu list --filter=labels.project=decoupled \
  '--format=table(name.basename(),acceleratorType.basename(),state,createTime)'
