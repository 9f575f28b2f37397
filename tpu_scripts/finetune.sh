#!/usr/bin/env bash
# Fine-tunes on a TPU slice: run.sh with decoupled finetune. The flags after -- are
# that command's; all paths must be on gs:// (upload.sh puts data there).
#
#   tpu_scripts/finetune.sh --name=xnli --zone=us-central1-a --type=v3-8 --spot \
#       -- --task=xnli --data_dir=gs://bucket/data/xtreme --init_checkpoint=gs://bucket/rembert \
#       --model_dir=gs://bucket/rembert_xnli
#
# It has to stay alive (tmux, nohup); started again it goes on. See run.sh --help for what it
# does about preemption and for the exit codes, and docs/tpu.md for what it costs.
USES=(name zone type version project service_account scopes create_arg internal_ip spot
  plain valid_until package again env max_attempts max_hours stall_minutes keep force dry_run)
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
need_flags finetune task data_dir/ init_checkpoint/ model_dir/
rm -rf "$SCRATCH"
exec "$HERE/run.sh" "${GIVEN[@]}" -- finetune "${REST[@]}"
