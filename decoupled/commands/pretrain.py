"""Pre-trains an encoder with masked language modelling.

Reads records (decoupled build_records) and their vocabulary. Writes checkpoints,
TensorBoard events, config.json and sampling.json (how often each language is seen) to
--model_dir. The same command resumes a run at the next unseen example. A folder with
another model is refused.

  decoupled pretrain --gin_file=models/demo_decoupled.gin \\
      --gin_file=runs/demo_pretrain.gin --gin_param='ModelConfig.vocab_size = 8000' \\
      --records_dir=data/records --vocabulary=data/vocabulary/sentencepiece.model \\
      --model_dir=runs/decoupled

--init_checkpoint initialises a new run with the weights of another run or of a
converted model (docs/interop.md): the encoder, and the output embedding if it has the
same size. Otherwise the output embedding is initialised at random.

--branch_from continues from a checkpoint of another run of the same model and data in a
separate folder, with its step and its optimizer's state. So one run at a constant rate
gives results at many budgets (docs/configuration.md, schedules):

  decoupled pretrain --gin_file=models/demo_decoupled.gin \\
      --gin_file=runs/demo_pretrain.gin --gin_param='ModelConfig.vocab_size = 8000' \\
      --gin_file=recipes/warmup_stable_decay.gin \\
      --gin_param='ScheduleConfig.train_steps = 11000' \\
      --gin_param='ScheduleConfig.decay_steps = 1000' \\
      --records_dir=data/records --vocabulary=data/vocabulary/sentencepiece.model \\
      --branch_from=runs/trunk/model.ckpt-10000 --model_dir=runs/after_11000

--mode: train_and_evaluate (default), train, eval (loss and accuracy per language of the
newest checkpoint, to eval.json), predict (the same per sequence, to predictions.jsonl).

SIGTERM and Ctrl-C end training after it has saved, with exit codes 143 and 130. The
same command resumes it.
"""

from absl import flags

from decoupled.configs import PretrainConfig
from decoupled.launch import hardware_flags, start
from decoupled.runs.run_folder import MODES, TRAINING_MODES, opened

TPU_DEFAULTS = "runs/pretrain_tpu.gin"


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    hardware_flags.define()
    flags.DEFINE_string("records_dir", None, "Folder that build_records wrote.")
    flags.DEFINE_string(
        "vocabulary",
        None,
        "The records' vocabulary: a file, or a folder of transformers.",
    )
    flags.DEFINE_string("model_dir", None, "Folder of the run, created if missing.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Initial weights of a new run: a model folder, or a prefix.",
    )
    flags.DEFINE_string(
        "branch_from",
        None,
        "Checkpoint from which a new run continues, with step and optimizer state: a "
        "run's folder, or a prefix.",
    )
    flags.DEFINE_enum("mode", "train_and_evaluate", MODES, "What to do.")
    flags.mark_flags_as_required(["records_dir", "vocabulary", "model_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    options = flags.FLAGS
    on_tpu = options.tpu or options.accelerator == "tpu"
    defaults = [TPU_DEFAULTS] if on_tpu else []
    config = start.parse_gin(PretrainConfig, *defaults)
    hardware = hardware_flags.parse()
    only_reads = options.mode not in TRAINING_MODES
    with opened(options.model_dir, hardware, start.facts(), only_reads):
        # Imported here, so that --help and the message of a lock need no TensorFlow.
        from decoupled.runs.pretraining import run_pretraining
        from decoupled.runs.pretraining_plan import plan_pretraining

        plan = plan_pretraining(
            config,
            options.records_dir,
            options.vocabulary,
            options.model_dir,
            options.mode,
            hardware,
            options.init_checkpoint,
            options.branch_from,
        )
        run_pretraining(plan, start.save_start)
