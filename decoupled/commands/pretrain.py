"""Pre-trains an encoder with masked language modelling.

Reads records (decoupled build_records) and their vocabulary; writes
checkpoints, TensorBoard events, config.json and sampling.json (how often each language
is seen) to --model_dir. Started again with the same settings it resumes at the next
unseen example; a folder with another model is refused.

  decoupled pretrain --gin_file=models/demo_decoupled.gin \\
      --gin_file=runs/demo_pretrain.gin --gin_param='ModelConfig.vocab_size = 8000' \\
      --records_dir=data/records --vocabulary=data/vocabulary/sentencepiece.model \\
      --model_dir=runs/decoupled

--init_checkpoint goes on from another run, or from a converted model (docs/interop.md):
encoder, and the output embedding if it has the same size; else that starts anew.

--branch_from goes on from a checkpoint of another run of the same model and data, with
its step and its optimizer's slots, in a folder of its own. So one run at a constant
rate gives results at many budgets (docs/configuration.md, schedules):

  decoupled pretrain --gin_file=models/demo_decoupled.gin \\
      --gin_file=runs/demo_pretrain.gin --gin_param='ModelConfig.vocab_size = 8000' \\
      --gin_file=recipes/warmup_stable_decay.gin \\
      --gin_param='ScheduleConfig.train_steps = 11000' \\
      --gin_param='ScheduleConfig.decay_steps = 1000' \\
      --records_dir=data/records --vocabulary=data/vocabulary/sentencepiece.model \\
      --branch_from=runs/trunk/model.ckpt-10000 --model_dir=runs/after_11000

--mode: train_and_evaluate (default), train, eval (loss and accuracy per language of the
newest checkpoint, to eval.json), predict (the same per sequence, to predictions.jsonl).
Ends with code 143 where SIGTERM stopped it after saving, and with 130 where Ctrl-C
did: run it again to go on.
"""

from absl import flags

from decoupled.configs import pretrain
from decoupled.core import locks
from decoupled.launch import start, tpu_flags
from decoupled.runs.run_folder import MODES, TRAINING_MODES

DEFAULTS, TPU_DEFAULTS = "runs/pretrain.gin", "runs/pretrain_tpu.gin"


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    tpu_flags.define()
    flags.DEFINE_string("records_dir", None, "Folder that build_records wrote.")
    flags.DEFINE_string("vocabulary", None, "The records' sentencepiece.model.")
    flags.DEFINE_string("model_dir", None, "Folder of the run, made if missing.")
    flags.DEFINE_string(
        "init_checkpoint", None, "Where a new run starts: a model folder, or a prefix."
    )
    flags.DEFINE_string(
        "branch_from",
        None,
        "Where a new run goes on, with step and slots: a run's folder, or a prefix.",
    )
    flags.DEFINE_enum("mode", "train_and_evaluate", MODES, "What to do.")
    flags.mark_flags_as_required(["records_dir", "vocabulary", "model_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    options = flags.FLAGS
    defaults = TPU_DEFAULTS if options.tpu else DEFAULTS
    config = start.parse_gin(pretrain, defaults)
    tpu = tpu_flags.parse()
    with locks.hold(options.model_dir, reading=options.mode not in TRAINING_MODES):
        # Here, so that neither --help nor a lock's answer waits for TensorFlow.
        from decoupled.runs.pretraining import run_pretraining

        run_pretraining(
            config,
            options.records_dir,
            options.vocabulary,
            options.model_dir,
            options.mode,
            tpu,
            options.init_checkpoint,
            options.branch_from,
            start.save_start,
        )
