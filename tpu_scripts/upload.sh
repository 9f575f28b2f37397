#!/usr/bin/env bash
# Copies files and folders to gs://, or to a TPU VM. Use gs:// for everything that must survive
# the slice: a new slice has an empty disk. On gs:// it copies only what is new: run it again
# after an interruption.
#
#   tpu_scripts/upload.sh --to=gs://bucket/data data/records data/vocabulary
#   tpu_scripts/upload.sh --to=gs://bucket/data --with_package
#   tpu_scripts/upload.sh --name=decoupled-1 --zone=us-central1-a --to=data data/records
#
# data/records becomes gs://bucket/data/records, and . a folder with the name of this one; the
# package becomes gs://bucket/data/decoupled.tar.gz, for --package of the other scripts.
USES=(to with_package name zone project worker internal_ip dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
need to gs://bucket/data
target="${OPTION[to]%/}"
if [[ $target != gs://* ]]; then need_slice; fi
package="$SCRATCH/decoupled.tar.gz"
[[ -n ${OPTION[with_package]}${REST[*]} ]] ||
  fail "nothing to copy; name files or folders, or --with_package"
declare -A path_of=()
[[ -z ${OPTION[with_package]} ]] || path_of[$target/${package##*/}]="the package"
for index in "${!REST[@]}"; do
  path="${REST[index]}"
  [[ -e $path || -n ${OPTION[dry_run]} ]] || fail "$path: no such file or folder"
  REST[index]="${path%/}"
  case "/${path%/}" in
    */. | */..) REST[index]="$(cd "$path" && pwd)" ;;
  esac
  copy="$target/${REST[index]##*/}"
  [[ -z ${path_of[$copy]:-} ]] ||
    fail "${path_of[$copy]} and $path would both become $copy; copy one with another --to"
  path_of[$copy]="$path"
done
if [[ -n ${OPTION[with_package]} ]]; then
  make_package "$package"
  REST+=("$package")
fi

if [[ $target != gs://* ]]; then
  worker="${OPTION[worker]:-0}"
  on_worker "$worker" ssh "${OPTION[name]}" "--command=$(quoted mkdir -p "$target")"
  run "${COMMAND[@]}"
  on_worker "$worker" scp --recurse "${REST[@]}" "${OPTION[name]}:$target"
  run "${COMMAND[@]}"
  exit
fi
for path in "${REST[@]}"; do
  if [[ -d $path ]]; then
    run gcloud storage rsync --recursive "$path" "$target/${path##*/}"
  else
    run gcloud storage cp "$path" "$target/${path##*/}"
  fi
done
