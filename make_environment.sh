#!/usr/bin/env bash
# Creates an environment for the Makefile, with the first of some versions of Python that
# this machine has.
#
#   make_environment.sh FOLDER VERSION...     e.g. .venv 3.13 3.12
#   make_environment.sh --find VERSION...     only prints the interpreter; fails without one
#
# Each version is looked for on PATH, then among those that pyenv has installed. Where there
# is none, uv provides the first version: the uv on PATH, or else one that any Python 3
# installs from PyPI into .venv-uv. The variable PYTHON names an interpreter instead. An
# environment that works is kept, so that an interrupted install goes on where it stopped.
set -euo pipefail
folder="$1"
shift
versions=("$@")
named="$(printf ', %s' "${versions[@]}")"
named="Python ${named:2} with its venv module"
advice="install one (e.g. apt install python${versions[0]}-venv, or python3-venv) or name it: \
make PYTHON=/path/to/python${versions[0]}"

refuse() {
  echo "make: error: $1; $advice" >&2
  exit 1
}

# fits PROGRAM MODULE: is it Python of one of the versions, with this module? Asking the
# program itself also passes over launchers that have nothing to launch.
fits() {
  "$1" -c "import $2, sys; sys.exit('%d.%d' % sys.version_info[:2] not in sys.argv[1:])" \
    "${versions[@]}" >/dev/null 2>&1
}

find_python() {
  local version candidate
  local candidates=()
  if [[ -n ${PYTHON:-} ]]; then
    candidates=("$PYTHON")
  else
    for version in "${versions[@]}"; do
      candidates+=("python$version")
      candidates+=("${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python)
    done
    candidates+=(python3 python)
  fi
  for candidate in "${candidates[@]}"; do
    if fits "$candidate" ensurepip; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# Prints the path of a uv.
find_uv() {
  local candidate
  command -v uv .venv-uv/bin/uv | head -n 1 | grep . && return
  for candidate in python3 python python3.{15,14,13,12,11,10,9,8}; do
    if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 8))' \
      >/dev/null 2>&1; then
      "$candidate" -m venv --clear .venv-uv >/dev/null 2>&1 || return
      .venv-uv/bin/python -m pip install uv >/dev/null 2>&1 || return
      echo .venv-uv/bin/uv
      return
    fi
  done
  return 1
}

create_with_uv() {
  local uv said
  echo "no $named: uv is to provide Python ${versions[0]}"
  uv="$(find_uv)" ||
    refuse "no $named, and no Python 3 that can install uv from PyPI to provide one"
  # The variable stands for --clear, which earlier releases of uv refuse.
  if ! said="$(UV_VENV_CLEAR=1 "$uv" venv --quiet --no-project --seed \
    --python "${versions[0]}" "$folder" 2>&1)"; then
    # The last cause that it gives, such as a name that cannot be looked up.
    said="${said##*$'\n'}"
    refuse "no $named, and uv cannot provide one (${said#*: })"
  fi
}

if [[ $folder == --find ]]; then
  find_python
elif ! fits "$folder/bin/python" pip; then
  if python="$(find_python)"; then
    echo "creating $folder with $("$python" --version)"
    "$python" -m venv --clear "$folder"
  elif [[ -n ${PYTHON:-} ]]; then
    refuse "PYTHON=$PYTHON is not $named"
  else
    create_with_uv
  fi
fi
