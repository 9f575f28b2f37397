#!/usr/bin/env bash
# Copies this checkout to every host of a TPU VM and installs it there, without touching
# the image's own TensorFlow: only that build drives the TPU.
#
#   tpu_scripts/install.sh --name=decoupled-1 --zone=us-central1-a
source "$(dirname "$0")/common.sh"
need_name
root="$(cd "$(dirname "$0")/.." && pwd)"
archive="$(mktemp -d)/decoupled.tar.gz"
trap 'rm -rf "$(dirname "$archive")"' EXIT
git -C "$root" archive --format=tar.gz --prefix=decoupled/ -o "$archive" HEAD
tpu scp "$archive" "$NAME:decoupled.tar.gz" --worker=all
# All that requirements.txt asks for but TensorFlow itself and what follows its version.
read -r -d '' remote <<'TEXT' || true
set -e
rm -rf decoupled
tar xzf decoupled.tar.gz
cd decoupled
sed '/^# \[/q' requirements.txt | grep -v -e '^tensorflow>' -e '^#' > core.txt
python3 -m pip install --user -r core.txt
python3 -m pip install --user --no-deps -e .
python3 -m decoupled.doctor
TEXT
tpu ssh "$NAME" --worker=all "--command=$remote"
