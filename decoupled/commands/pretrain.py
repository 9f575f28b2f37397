"""Pre-trains an encoder with masked language modelling.

Reads records (decoupled build_records) and their vocabulary; writes
checkpoints, TensorBoard events, config.json and sampling.json (how often each language
is seen) to --model_dir. Started again with the same settings it resumes at the next
unseen example; a folder with another model is refused.

  decoupled pretrain --gin_file=models/demo_decoupled.gin \\
      --records_dir=data/records --vocabulary=data/vocabulary/sentencepiece.model \\
      --model_dir=runs/decoupled

--init_checkpoint goes on from another run, or from a converted model (docs/interop.md):
encoder, and the output embedding if it has the same size; else that starts anew.

--mode: train_and_evaluate (default), train, eval (loss and accuracy per language of the
newest checkpoint, to eval.json), predict (the same per sequence, to predictions.jsonl).
Ends with code 143 where SIGTERM stopped it after saving, and with 130 where Ctrl-C
did: run it again to go on.
"""

import json
import os

from absl import flags

from decoupled.configs import PretrainConfig, pretrain
from decoupled.core import console, files, locks
from decoupled.core.errors import UserError
from decoupled.launch import start, tpu_flags
from decoupled.runs import run_folder

TRAINING_MODES = ("train_and_evaluate", "train")
MODES = (*TRAINING_MODES, "eval", "predict")
SAMPLING = "sampling.json"
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
    flags.DEFINE_enum("mode", "train_and_evaluate", MODES, "What to do.")
    flags.mark_flags_as_required(["records_dir", "vocabulary", "model_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    options = flags.FLAGS
    defaults = TPU_DEFAULTS if options.tpu else DEFAULTS
    config = start.parse_gin(pretrain, defaults)
    tpu = tpu_flags.parse()
    with locks.hold(options.model_dir, reading=options.mode not in TRAINING_MODES):
        run_pretraining(
            config,
            options.records_dir,
            options.vocabulary,
            options.model_dir,
            options.mode,
            tpu,
            options.init_checkpoint,
        )


def run_pretraining(
    config: PretrainConfig,
    records_dir: str,
    vocabulary: str,
    folder: str,
    mode: str,
    tpu: dict | None = None,
    init_checkpoint: str | None = None,
) -> None:
    """Trains, evaluates or predicts; see the module's docstring.

    Args:
      config: the settings.
      records_dir, vocabulary, folder, mode: the flags.
      tpu: what `tpu_flags.parse` gives.
      init_checkpoint: a model folder, or a prefix in one, that a new run starts from.

    Raises:
      UserError: settings, records, vocabulary and folder do not fit each other.
    """
    from decoupled.data.reading import named_errors
    from decoupled.data.records import read_manifest
    from decoupled.data.verification import check_beginnings
    from decoupled.data.vocabulary import Vocabulary

    manifest = read_manifest(records_dir)
    pieces = Vocabulary(vocabulary)
    manifest.check_vocabulary(pieces.fingerprint, vocabulary)
    _check_sizes(config, pieces)
    prefix = _initial_checkpoint(init_checkpoint, pieces)
    training = mode in TRAINING_MODES
    rows = _sampling_rows(config, manifest) if training else []
    if mode != "train":
        _held_out_counts(config, manifest)
    check_beginnings(manifest)
    session = _Session(config, manifest, pieces, folder, tpu, prefix)
    description = _describe(config, manifest, pieces, prefix)
    run_folder.claim(folder, description, vocabulary, reading=not training)
    start.save_start(folder)
    with named_errors(records_dir):
        if training:
            _show_sampling(rows, config, folder)
            session.train(evaluating=mode == "train_and_evaluate")
        if mode == "eval" or (mode == "train_and_evaluate" and not session.evaluated()):
            session.evaluate()
        if mode == "predict":
            session.predict()


def _describe(config, manifest, pieces, prefix):
    """What config.json says of the run."""
    return run_folder.ModelDir(
        command="pretrain",
        model=config.model,
        vocabulary_fingerprint=pieces.fingerprint,
        task=None,
        data={
            "records": manifest.corpus_fingerprint,
            "masking": vars(config.masking),
            "sampling": vars(config.sampling),
            # Limits on epochs make the order depend on the length of the run.
            "sequences": _sequences(config) if config.sampling.limits_epochs else None,
            "batch_size": config.training.batch_size,
            "seed": config.training.seed,
            # Not the path: folders move.
            "init_checkpoint": prefix and os.path.basename(prefix),
        },
    )


def _initial_checkpoint(path, pieces):
    """The prefix that `path` names, or None; it must have the pieces of the records."""
    from decoupled.runs.saved_run import open_run

    if path is None:
        return None
    source = open_run(path)
    if source.vocabulary.fingerprint != pieces.fingerprint:
        raise UserError(
            f"--init_checkpoint: {path} has another vocabulary than {pieces.path}; "
            "build the records with its sentencepiece.model"
        )
    return source.prefix


def _check_sizes(config, pieces):
    model, masking = config.model, config.masking
    if model.vocab_size != pieces.size:
        raise UserError(
            f"ModelConfig.vocab_size: {model.vocab_size}, but {pieces.path} has "
            f"{pieces.size} pieces; make them equal"
        )
    if masking.sequence_length > model.max_positions:
        raise UserError(
            f"MaskingConfig.sequence_length: {masking.sequence_length} is more than "
            f"ModelConfig.max_positions = {model.max_positions}"
        )


def _held_out_counts(config, manifest):
    """Language -> how many held-out sequences are evaluated, none of them 0.

    Raises:
      UserError: there are none at all.
    """
    from decoupled.data.sequence_order import EVAL
    from decoupled.data.sequences import evaluation_count

    length, limit = config.masking.sequence_length, config.training.eval_sequences
    counts = {
        language: evaluation_count(entry, length, limit)
        for language, entry in manifest.splits.get(EVAL, {}).items()
    }
    if not any(counts.values()):
        raise UserError(
            f"{manifest.folder}: no held-out text (split {EVAL!r}) to evaluate; build "
            "corpus and records with some, or train without evaluation: --mode=train"
        )
    return {language: count for language, count in counts.items() if count}


def _sampling_rows(config, manifest):
    """A row per language; refuses sampling that the records cannot give."""
    from decoupled.data.sequence_order import sampling_rows

    length, sequences = config.masking.sequence_length, _sequences(config)
    return sampling_rows(manifest, config.sampling, length, sequences)


def _sequences(config):
    """How many sequences the whole run draws."""
    return config.training.batch_size * config.schedule.train_steps


def _show_sampling(rows, config, folder):
    """Prints the table and keeps all of it in the folder."""
    from decoupled.corpora.sampling import as_json, print_rows

    path = os.path.join(folder, SAMPLING)
    files.write_json(path, as_json(rows))
    print_rows(f"{len(rows)} languages, alpha {config.sampling.alpha}", rows)
    console.say(f"the whole table: {path}")


class _Session:
    """One run's graph, data and folder."""

    def __init__(self, config, manifest, vocabulary, folder, tpu, init_checkpoint):
        from decoupled.tasks.mlm import MaskedLM
        from decoupled.training.cluster import join_cluster
        from decoupled.training.graph import GraphConfig, check_graph
        from decoupled.training.hooks import StopOnSignal
        from decoupled.training.model_fn import RunSpec
        from decoupled.training.tpu import TpuAddress

        self.config, self.manifest = config, manifest
        self.vocabulary, self.folder = vocabulary, folder
        self.graph = GraphConfig(
            task=MaskedLM(
                config.masking, config.training.label_smoothing, vocabulary.pad_id
            ),
            model=config.model,
            mesh=config.mesh,
            optimizer=config.optimizer,
            schedule=config.schedule,
            accumulation=config.training.gradient_accumulation,
            seed=config.training.seed,
            frozen=(),
            recompute_layers=config.training.recompute_layers,
        )
        # Before the other processes are waited for.
        check_graph(self.graph, config.training)
        cluster = join_cluster(config.cluster, config.mesh, console.say, bool(tpu))
        self.run = RunSpec(
            model_dir=folder,
            training=config.training,
            init_checkpoint=init_checkpoint,
            say=console.say,
            stop=StopOnSignal(),
            cluster=cluster,
            tpu=TpuAddress(**tpu) if tpu else None,
        )

    def train(self, evaluating):
        """Trains to the end, with an evaluation every `eval_every_steps` if asked."""
        from decoupled.training.estimator import train

        every = self.config.training.eval_every_steps if evaluating else 0
        train(
            self.graph,
            self.run,
            self._input_fn_from,
            every_steps=every,
            then=self.evaluate,
        )

    def _input_fn_from(self, step):
        from decoupled.data.input_fn import pretraining_input_fn

        config = self.config
        return pretraining_input_fn(
            self.manifest,
            self.vocabulary,
            config.masking,
            config.sampling,
            config.training.batch_size,
            config.training.seed,
            step,
            config.schedule.train_steps,
        )

    def evaluated(self):
        """Whether eval.json is of the newest checkpoint."""
        from decoupled.runs.evaluation import finished_results
        from decoupled.training.checkpoints import checkpoint_step, find_checkpoint

        step = checkpoint_step(find_checkpoint(self.folder))
        path = os.path.join(self.folder, "eval.json")
        found = finished_results(path, step) is not None
        if found:
            console.say(f"{path}: of step {step} already, reused")
        return found

    def evaluate(self):
        """Writes eval.json and TensorBoard scalars; prints the averages."""
        from decoupled.training.checkpoints import checkpoint_step, find_checkpoint
        from decoupled.training.events import write_scalars

        step = checkpoint_step(find_checkpoint(self.folder))
        results = {}
        for language, rows in self._predictions():
            weight = float(rows["weight"].sum())
            results[language] = {
                "masked_lm_accuracy": float(rows["hits"].sum()) / weight,
                "masked_lm_loss": float(rows["loss_sum"].sum()) / weight,
                "predictions": int(weight),
            }
        average = _weighted_average(results)
        files.write_json(
            os.path.join(self.folder, "eval.json"),
            {"global_step": step, "all": average, "languages": results},
        )
        scalars = {
            f"{metric}/{language}": values[metric]
            for language, values in {"all": average, **results}.items()
            for metric in ("masked_lm_accuracy", "masked_lm_loss")
        }
        write_scalars(os.path.join(self.folder, "eval"), step, scalars)
        console.say(
            f"held-out text at step {step}, {len(results)} languages: "
            f"masked_lm_accuracy {average['masked_lm_accuracy']:.4f}  "
            f"masked_lm_loss {average['masked_lm_loss']:.4f}"
        )

    def predict(self):
        """Writes predictions.jsonl: loss and hits of every held-out sequence."""
        path = os.path.join(self.folder, "predictions.jsonl")
        with files.atomic_write(path) as handle:
            for language, rows in self._predictions():
                for index in range(len(rows["weight"])):
                    row = {name: float(values[index]) for name, values in rows.items()}
                    line = {"language": language, "sequence": index, **row}
                    handle.write(json.dumps(line) + "\n")
        console.say(f"wrote {path}")

    def _predictions(self):
        from decoupled.data.input_fn import languages_input_fn
        from decoupled.runs.evaluation import Part, predict_parts

        config = self.config
        counts = _held_out_counts(config, self.manifest)
        parts = [Part(language, count) for language, count in counts.items()]
        input_fn = languages_input_fn(
            self.manifest,
            self.vocabulary,
            config.masking,
            config.training.eval_batch_size,
            config.training.seed,
            [part.name for part in parts],
            config.training.eval_sequences,
        )
        predictions = predict_parts(self.graph, self.run, input_fn, parts)
        return console.track(predictions, "evaluating languages", len(parts))


def _weighted_average(results):
    total = sum(values["predictions"] for values in results.values())
    return {
        metric: sum(v[metric] * v["predictions"] for v in results.values()) / total
        for metric in ("masked_lm_accuracy", "masked_lm_loss")
    } | {"predictions": total}
