#!/usr/bin/env bash
# Installs the package on a slice. With an image for TPUEstimator, on the first host, without
# touching the image's TensorFlow: only that build drives the TPU, and the other hosts only serve
# their cores. With any other image, on all hosts, with JAX and a Python of its own.
#
#   tpu_scripts/install.sh --name=decoupled-1 --zone=us-central1-a
USES=(name zone type version project package internal_ip dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
no_rest
need_slice
check_package
package="${OPTION[package]}"

# What the slice is, it says itself.
OPTION[type]="${OPTION[type]:-v6e-8}"
in_zone tpu-vm describe "${OPTION[name]}" '--format=value[separator="|"]('\
'acceleratorType.basename(),runtimeVersion,networkEndpoints.len())'
ask "${OPTION[type]}|$(runtime_version)|$(hosts)" "${COMMAND[@]}" || fail "$ERRORS"
IFS='|' read -r type version count <<<"$ANSWER"
OPTION[type]="$type" OPTION[version]="$version"
if [[ $count =~ ^[0-9]+$ && $count != "$(hosts)" ]]; then
  fail "${OPTION[name]} has $count of the $(hosts) hosts of a $type: delete it and create it again" 1
fi

files=("$HERE/host_install.sh" "$HERE/host_job.sh")
if [[ -z $package ]]; then
  package="$SCRATCH/decoupled.tar.gz"
  make_package "$package"
fi
if [[ $package != gs://* ]]; then
  files+=("$package")
  package="${package##*/}"
fi
install=(bash host_install.sh "$package")
by_estimator || install+=("$(chips)" "$(hosts)")
on_worker "$(workers)" scp "${files[@]}" "${OPTION[name]}:"
run "${COMMAND[@]}"
on_worker "$(workers)" ssh "${OPTION[name]}" "--command=$(quoted "${install[@]}")"
run "${COMMAND[@]}"
