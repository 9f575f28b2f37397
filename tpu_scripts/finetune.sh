#!/usr/bin/env bash
# Fine-tunes on a TPU slice: run.sh with decoupled finetune. The flags after -- are
# that command's; all paths must be on gs:// (upload.sh puts data there).
#
#   tpu_scripts/finetune.sh --name=xnli --zone=us-central1-a --type=v3-8 --spot \
#       -- --task=xnli --data_dir=gs://bucket/data/xtreme --init_checkpoint=gs://bucket/rembert \
#       --model_dir=gs://bucket/rembert_xnli
#
# Keep it alive (tmux, nohup); when started again, it continues. run.sh --help describes
# preemption and the exit codes, docs/accelerators.md the cost.
USES=(name zone type version project service_account scopes create_arg internal_ip spot
  plain valid_until package again env max_attempts max_hours stall_minutes keep force dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
need_flags finetune task data_dir init_checkpoint model_dir
rm -rf "$SCRATCH"
exec "$HERE/run.sh" "${GIVEN[@]}" -- finetune "${REST[@]}"
