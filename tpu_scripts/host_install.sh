#!/usr/bin/env bash
# Installs the package on a host of a TPU slice; install.sh copies it there and calls it.
#
#   bash host_install.sh PACKAGE                with the TensorFlow of the image
#   bash host_install.sh PACKAGE CHIPS HOSTS    with JAX, on each of HOSTS hosts of CHIPS chips
#
# PACKAGE is an sdist or a wheel: in the home folder, or gs://.
set -euo pipefail
cd
package="$1" chips="${2:-}" hosts="${3:-}"

fetch_package() {
  if [[ $package == gs://* ]]; then
    gcloud storage cp "$package" .
    package="${package##*/}"
  fi
}

# with_jax: in an environment of its own, because JAX needs a newer Python than the image's; uv
# brings one.
with_jax() {
  bash host_job.sh check_chips "$chips" || exit 1
  fetch_package
  export PATH="$HOME/.local/bin:$PATH" UV_VENV_CLEAR=1
  command -v uv >/dev/null || python3 -m pip --disable-pip-version-check install --user uv
  uv venv --quiet --no-project --python 3.13 decoupled_env
  uv pip install --quiet --python decoupled_env/bin/python --reinstall-package decoupled \
    "decoupled[tpu_vm] @ file://$HOME/$package"
  # JAX on one host of several waits for the others.
  ((hosts > 1)) || decoupled_env/bin/python -m decoupled doctor
}

# The version of TensorFlow, and the digests of its files as its installer recorded them.
tensorflow_build() {
  python3 - <<'PY'
import hashlib
import importlib.metadata as metadata
import sys

try:
    found = metadata.distribution("tensorflow")
except metadata.PackageNotFoundError:
    sys.exit("host_install.sh: error: no TensorFlow in this image; use tpu-vm-tf-2.15.1-se")
if not found.version.startswith("2.15."):
    sys.exit(f"host_install.sh: error: this image has TensorFlow {found.version}; these "
             "scripts need 2.15; use tpu-vm-tf-2.15.1-se")
print(found.version, hashlib.sha256((found.read_text("RECORD") or "").encode()).hexdigest())
PY
}

if [[ -n $chips ]]; then
  with_jax
  exit
fi
# The image's own TensorFlow 2.15 stays: it has the stream executor, which TPUEstimator needs and
# no build on PyPI has. The package itself is installed without its requirements; then
# the requirements and the extra "tpu", with the TensorFlow of the image as a constraint, so that
# pip ends with an error rather than fetch another. This is checked at the end.
pip=(python3 -m pip --disable-pip-version-check)
before="$(tensorflow_build)"
fetch_package
# Without the exact name of a release pip would not look into a file of the same version.
"${pip[@]}" install --user --no-deps --force-reinstall "./$package"
# numpy: TensorFlow 2.15 is built for numpy 1, whether or not the image's build says so.
printf '%s\n' "tensorflow==${before%% *}" "numpy<2" >decoupled_constraints.txt
python3 - >decoupled_requirements.txt <<'PY'
import importlib.metadata as metadata
import re

for line in metadata.requires("decoupled"):
    requirement, _, condition = line.partition(";")
    extra = re.search(r"""extra == ['"](\w+)['"]""", condition)
    name = re.match(r"[\w.-]+", requirement)[0]
    if (not extra or extra[1] == "tpu") and name != "tensorflow":
        print(requirement.strip())
PY
"${pip[@]}" install --user --constraint decoupled_constraints.txt \
  --requirement decoupled_requirements.txt
after="$(tensorflow_build)"
if [[ $after != "$before" ]]; then
  echo "host_install.sh: error: TensorFlow was ${before%% *} of the image and is now" \
    "${after%% *}, another build; create the slice anew" >&2
  exit 1
fi
python3 -m decoupled doctor
