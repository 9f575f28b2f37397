#!/usr/bin/env bash
# Installs the package on the first host of a slice, without touching the image's own
# TensorFlow: only that build drives the TPU. The first host is enough: the training program
# runs there, and the others only serve their cores.
#
#   tpu_scripts/install.sh --name=decoupled-1 --zone=us-central1-a
USES=(name zone project package worker internal_ip dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
no_rest
need_slice
package="${OPTION[package]}"
worker="${OPTION[worker]:-0}"

files=("$HERE/host_install.sh" "$HERE/host_job.sh")
if [[ -z $package ]]; then
  package="$SCRATCH/decoupled.tar.gz"
  make_package "$package"
fi
if [[ $package != gs://* ]]; then
  [[ -n ${OPTION[dry_run]} || -f $package ]] || fail "--package=$package: no such file"
  files+=("$package")
  package="${package##*/}"
fi
on_worker "$worker" scp "${files[@]}" "${OPTION[name]}:"
run "${COMMAND[@]}"
on_worker "$worker" ssh "${OPTION[name]}" \
  "--command=$(quoted bash host_install.sh "$package")"
run "${COMMAND[@]}"
