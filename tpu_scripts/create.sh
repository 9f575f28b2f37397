#!/usr/bin/env bash
# Creates a TPU VM, labelled so that list.sh finds it. It costs money until delete.sh.
#
#   tpu_scripts/create.sh --name=decoupled-1 --zone=us-central1-a --type=v3-8 --spot
source "$(dirname "$0")/common.sh"
need_name
arguments=(
  "--accelerator-type=$TYPE" "--version=$(runtime_version)" --labels=project=decoupled
)
[[ -z $SERVICE_ACCOUNT ]] || arguments+=("--service-account=$SERVICE_ACCOUNT")
[[ -z $SPOT ]] || arguments+=(--spot)
tpu create "$NAME" "${arguments[@]}"
