#!/usr/bin/env bash
# Pre-trains on a TPU slice: run.sh with decoupled pretrain. The flags after -- are
# that command's; all paths must be on gs:// (upload.sh puts data there).
#
#   tpu_scripts/pretrain.sh --name=rembert --zone=us-central1-a --type=v3-32 --spot \
#       --service_account=trainer@project.iam.gserviceaccount.com \
#       -- --gin_file=models/rembert.gin --gin_file=layouts/LAYOUT.gin \
#       --records_dir=gs://bucket/data/records \
#       --vocabulary=gs://bucket/data/vocabulary/sentencepiece.model \
#       --model_dir=gs://bucket/rembert
#
# Keep it alive (tmux, nohup); when started again, it continues. run.sh --help describes
# preemption and the exit codes, docs/accelerators.md the cost.
USES=(name zone type version project service_account scopes create_arg internal_ip spot
  plain valid_until package again env max_attempts max_hours stall_minutes keep force dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
need_flags pretrain model_dir records_dir vocabulary
rm -rf "$SCRATCH"
exec "$HERE/run.sh" "${GIVEN[@]}" -- pretrain "${REST[@]}"
