#!/usr/bin/env bash
# Deletes a TPU VM. Checkpoints on gs:// stay; what lies on its disk is gone.
#
#   tpu_scripts/delete.sh --name=decoupled-1 --zone=us-central1-a
source "$(dirname "$0")/common.sh"
need_name
tpu delete "$NAME" --quiet
