"""Pre-training: a run's data, its training, and its evaluation on held-out text.

Writes checkpoints, events, config.json, sampling.json, eval.json and predictions.jsonl
to the folder of the run.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator

import numpy as np

from decoupled.configs import Phase, PretrainConfig, without_effect
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.core.files import CHECKPOINT_LIST
from decoupled.core.made_from import MADE_FROM, hash_files, read_results
from decoupled.corpora.sampling import LanguageRow, as_json, print_rows
from decoupled.data.counters import Stream, numpy_bits
from decoupled.data.reading import count_pieces, named_errors
from decoupled.data.records import RecordsManifest, read_manifest
from decoupled.data.sequence_order import EVAL, TRAIN, sampling_rows
from decoupled.data.sequences import evaluation_count
from decoupled.data.verification import check_beginnings
from decoupled.data.vocabulary import Vocabulary
from decoupled.runs import run_folder
from decoupled.runs.curve import CROSSED_BELOW, entropy
from decoupled.runs.evaluation import ends_with_a_line
from decoupled.runs.run_folder import TRAINING_MODES
from decoupled.runs.saved_run import open_model
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.checkpoints import (
    branch_off,
    checkpoint_step,
    find_checkpoint,
    latest_complete,
)
from decoupled.training.cluster import join_cluster
from decoupled.training.events import PERCENT, write_scalars
from decoupled.training.graph import TrainingGraph, check_graph, pretraining_graph
from decoupled.training.loop import Run, check_devices, predict, train

EVALUATION, PREDICTIONS = "eval.json", "predictions.jsonl"
SAMPLING = "sampling.json"
# Beside the objective's metrics in eval.json: the loss of a model that knows only how
# frequent pieces are, and what the average of the languages is weighted by.
UNIGRAM_ENTROPY, PREDICTED = "unigram_entropy", "predictions"
# A language's unigram entropy is computed from whole shards with about so many tokens.
_COUNTED_TOKENS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run whose settings, records, weights and folder fit each other.

    mode: one of `run_folder.MODES`. phases: each with its graph.
    sampling: of each phase, a row per language; empty where nothing is trained.
    run: folder, cluster or TPU.
    description: of the folder, and `hashed`, what its hashes are of; see
      `run_folder.claim`.
    trunk: the checkpoint from which a new branch goes on, or None.
    """

    config: PretrainConfig
    mode: str
    manifest: RecordsManifest
    vocabulary: Vocabulary
    phases: list[tuple[Phase, TrainingGraph]]
    sampling: list[list[LanguageRow]]
    run: Run
    description: run_folder.ModelDir
    hashed: dict[str, str]
    trunk: str | None

    @property
    def folder(self) -> str:
        """The folder of the run."""
        return self.run.model_dir

    @functools.cached_property
    def unigram_entropy(self) -> dict[str, float]:
        """Language -> nats a token of its held-out text."""
        manifest = self.manifest
        with named_errors(manifest.folder):
            return {
                language: entropy(count_pieces(manifest, records, _COUNTED_TOKENS))
                for language, records in manifest.splits[EVAL].items()
            }

    def step(self) -> int:
        """The step of the newest checkpoint."""
        return checkpoint_step(find_checkpoint(self.folder))

    def phase(self) -> tuple[Phase, TrainingGraph]:
        """The phase of the newest checkpoint; the last if it is after all phases."""
        step, last = self.step(), self.phases[-1]
        return next((pair for pair in self.phases if step <= pair[0].last), last)


def run_pretraining(
    plan: Plan, record_start: Callable[[str], None] = lambda folder: None
) -> None:
    """Trains, evaluates or predicts.

    Args:
      record_start: called with the folder once it belongs to this run.

    Raises:
      UserError: the folder holds another run, or a defect shows in the records.
    """
    mode, training = plan.mode, plan.mode in TRAINING_MODES
    vocabulary = plan.vocabulary.path
    run_folder.claim(
        plan.folder, plan.description, vocabulary, not training, plan.hashed
    )
    record_start(plan.folder)
    with named_errors(plan.manifest.folder):
        if training:
            train_phases(plan, evaluating=mode == "train_and_evaluate")
        if mode == "eval" or (mode == "train_and_evaluate" and not is_evaluated(plan)):
            evaluate(plan)
        if mode == "predict":
            predict_sequences(plan)


def plan_pretraining(
    config: PretrainConfig,
    records_dir: str,
    vocabulary: str,
    folder: str,
    mode: str,
    hardware: Hardware = HOST,
    init_checkpoint: str | None = None,
    branch_from: str | None = None,
) -> Plan:
    """Checks all that can be checked before the first step. Writes nothing.

    Args:
      vocabulary: the sentencepiece.model of the records.
      mode: one of `run_folder.MODES`. hardware: what computes.
      init_checkpoint: a model folder, or a prefix in one, that a new run starts from.
      branch_from: a run, or a prefix of one of its checkpoints, from which a new run
        continues at its step and with its slots. Only schedule and optimizer may
        differ.

    Raises:
      UserError: settings, records, vocabulary and weights do not fit each other.
      WorkerLost: a process of the cluster did not answer.
    """
    check_devices(hardware, config.mesh, console.say)
    manifest = read_manifest(records_dir)
    pieces = Vocabulary(vocabulary)
    manifest.check_vocabulary(pieces.fingerprint, vocabulary)
    sampling = []
    for phase in config.phases:
        _check_sizes(phase.config, pieces)
        if mode in TRAINING_MODES:
            sampling.append(_sampling_rows(phase, manifest))
        if mode != "train":
            held_out_counts(phase.config, manifest)
    prefix = _initial_checkpoint(init_checkpoint, pieces)
    check_beginnings(manifest)
    phases = [(p, pretraining_graph(p.config, pieces.pad_id)) for p in config.phases]
    for phase, graph in phases:
        check_graph(graph.network, phase.config.training)
    # Waits for the other processes.
    cluster = join_cluster(config.cluster, config.mesh, console.say, hardware)
    description = _describe(config, manifest, pieces, prefix)
    hashed = {
        "data.records": f"the corpus of {records_dir}",
        "data.shards": f"the training text in {records_dir}",
        "data.init_checkpoint_sha256": str(prefix),
    }
    run = Run(
        model_dir=folder,
        training=config.training,
        init_checkpoint=prefix,
        say=console.say,
        stop=StopOnSignal(),
        cluster=cluster,
        hardware=hardware,
    )
    return Plan(
        config=config,
        mode=mode,
        manifest=manifest,
        vocabulary=pieces,
        phases=phases,
        sampling=sampling,
        run=run,
        description=description,
        hashed=hashed,
        trunk=_trunk(branch_from, folder, description, config, hashed),
    )


def train_phases(plan: Plan, evaluating: bool) -> None:
    """Trains to the end, or resumes; a new branch begins where its trunk is.

    With `evaluating`, held-out text is evaluated every
    `TrainingConfig.eval_every_steps` steps.
    """
    config, folder = plan.config, plan.folder
    if plan.trunk:
        branch_off(plan.trunk, folder)
        console.say(f"branched off {plan.trunk}")
    for (phase, _), rows in zip(plan.phases, plan.sampling, strict=True):
        _show_sampling(rows, phase, config, folder)
    step = checkpoint_step(latest_complete(folder))
    changeable = ("optimizer", "schedule", "training", "mesh")
    settings = run_folder.resumable_settings(config, changeable)
    end = config.schedule.train_steps
    run_folder.note_settings(folder, settings, step, end)
    if step < end:
        for line in without_effect(config.schedule, config.training, evaluating):
            console.say(line)
    for phase, graph in plan.phases:
        is_last = phase.number == len(plan.phases) - 1
        if not is_last and checkpoint_step(latest_complete(folder)) >= phase.last:
            continue
        masking, training = phase.config.masking, phase.config.training
        if len(plan.phases) > 1:
            console.say(
                f"phase {phase.number + 1} of {len(plan.phases)}: steps "
                f"{phase.first} to {phase.last}, {training.batch_size} sequences "
                f"of {masking.sequence_length} tokens a step, "
                f"{masking.masking_rate:.0%} predicted"
            )
        train(
            graph,
            plan.run._replace(training=training),
            functools.partial(_input_fn_from, plan, phase, graph),
            every_steps=config.training.eval_every_steps if evaluating else 0,
            then=functools.partial(evaluate, plan),
            phase=phase,
        )


def _input_fn_from(plan, phase, graph, step):
    config = phase.config
    return graph.network.task.training_input_fn(
        config,
        plan.manifest,
        plan.vocabulary,
        stream_seed(config.training.seed, phase.number),
        step - phase.first,
        phase.last - phase.first,
    )


def is_evaluated(plan: Plan) -> bool:
    """Whether eval.json has the results of the newest checkpoint and of the present
    held-out text."""
    path = os.path.join(plan.folder, EVALUATION)
    evaluated = read_results(path, _made_from(plan)) is not None
    if evaluated:
        console.say(
            f"{path}: of step {plan.step()} already, reused; --mode=eval evaluates "
            "again"
        )
    return evaluated


def _made_from(plan):
    """What an evaluation of the newest checkpoint is computed from."""
    manifest, config = plan.manifest, plan.phase()[0].config
    shards = [
        manifest.path(shard)
        for entry in manifest.splits.get(EVAL, {}).values()
        for shard in entry.files
    ]
    return {
        "checkpoint": run_folder.weights_sha256(find_checkpoint(plan.folder)),
        "files": hash_files(shards, manifest.folder),
        "settings": {
            "MaskingConfig": vars(config.eval_masking),
            "MeshConfig.activation_dtype": config.mesh.activation_dtype,
            "TrainingConfig.eval_sequences": config.training.eval_sequences,
            "TrainingConfig.seed": config.training.seed,
        },
    }


@ends_with_a_line
def evaluate(plan: Plan) -> None:
    """Writes eval.json and TensorBoard scalars; prints the averages.

    Sequences are as long as in the phase of the newest checkpoint.

    The unigram entropy of the held-out text is written beside the loss. It is the loss
    of a model that knows only how frequent the pieces are. BERT's masks leave a tenth
    of the tokens unchanged, so that a model on that plateau is some 0.5 nats below it;
    see `runs.curve`.
    """
    step, made_from, results = plan.step(), _made_from(plan), {}
    task = plan.phase()[1].network.task
    for language, rows in _predictions(plan):
        unigram = {UNIGRAM_ENTROPY: plan.unigram_entropy[language]}
        results[language] = task.results(rows) | unigram
    average = _weighted_average(results)
    files.write_json(
        os.path.join(plan.folder, EVALUATION),
        {
            "global_step": step,
            MADE_FROM: made_from,
            "all": average,
            "languages": results,
        },
    )
    scalars = {}
    for language, values in {"all": average, **results}.items():
        for name, value in values.items():
            if name in task.metrics:
                scalars[f"{name}{PERCENT}/{language}"] = 100 * value
            elif name != PREDICTED:
                scalars[f"{name}/{language}"] = value
    write_scalars(os.path.join(plan.folder, "eval"), step, scalars)
    shown = "  ".join(
        f"{name} {100 * value:.2f}%" if name in task.metrics else f"{name} {value:.4f}"
        for name, value in average.items()
        if name != PREDICTED
    )
    count = len(results)
    console.say(f"held-out text at step {step}, {count} languages: {shown}")
    if average[task.loss] > average[UNIGRAM_ENTROPY] - CROSSED_BELOW:
        console.say(
            f"the loss is not {CROSSED_BELOW:g} nat below the unigram entropy: the "
            "model may still be on the plateau of word frequencies "
            "(docs/expectations.md)"
        )


@ends_with_a_line
def predict_sequences(plan: Plan) -> None:
    """Writes predictions.jsonl: loss and hits of every held-out sequence."""
    path = os.path.join(plan.folder, PREDICTIONS)
    with files.atomic_write(path) as handle:
        for language, rows in _predictions(plan):
            for index in range(len(rows["weight"])):
                row = {name: float(values[index]) for name, values in rows.items()}
                line = {"language": language, "sequence": index, **row}
                handle.write(json.dumps(line) + "\n")
    console.say(f"wrote {path}")


def _predictions(plan) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Languages, with the predictions for each of their held-out sequences."""
    phase, graph = plan.phase()
    config, network = phase.config, graph.network
    counts = held_out_counts(config, plan.manifest)
    input_fn = network.task.evaluation_input_fn(
        config, plan.manifest, plan.vocabulary, list(counts)
    )
    # Each language has batches of its own; the last one is filled up.
    batch, track = config.training.eval_batch_size, console.track
    with contextlib.closing(predict(network, plan.run, input_fn)) as predicted:
        # The first row waits for the graph, which no other language does.
        rows = itertools.chain([next(predicted)], predicted)
        for language, count in track(counts.items(), "evaluating languages"):
            padded = itertools.islice(rows, -(-count // batch) * batch)
            kept = list(padded)[:count]
            yield language, {k: np.stack([row[k] for row in kept]) for k in kept[0]}
        # TPUEstimator adds a last batch; see `runs.evaluation`.
        collections.deque(rows, maxlen=0)


def held_out_counts(
    config: PretrainConfig, manifest: RecordsManifest
) -> dict[str, int]:
    """Language -> how many held-out sequences are evaluated, none of them 0.

    Raises:
      UserError: there are none at all.
    """
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


def _describe(config, manifest, pieces, prefix) -> run_folder.ModelDir:
    *earlier, last = config.phases
    return run_folder.ModelDir(
        command="pretrain",
        model=config.model,
        vocabulary_fingerprint=pieces.fingerprint,
        task=None,
        data={
            "records": manifest.corpus_fingerprint,
            # The same text in other shards is read in another order.
            "shards": _shards_sha256(manifest),
            # Only if it is set, so that runs from before this setting can be resumed.
            "masking": vars(config.masking)
            | ({"whole_words": True} if config.whole_words else {}),
            "sampling": vars(config.sampling),
            "sequences": _sequences(last),
            "batch_size": config.training.batch_size,
            "seed": config.training.seed,
            # Only another one, so that runs from before this setting can be resumed.
            **({} if config.objective == "mlm" else {"objective": config.objective}),
            # Not the path: folders move.
            "init_checkpoint": prefix and os.path.basename(prefix),
        }
        | (
            {"init_checkpoint_sha256": run_folder.weights_sha256(prefix)}
            if prefix
            else {}
        )
        | ({"earlier_phases": list(map(_describe_phase, earlier))} if earlier else {}),
    )


def _shards_sha256(manifest) -> str:
    """The SHA-256 of the hashes of all shards of training text."""
    languages = manifest.splits.get(TRAIN, {}).values()
    hashes = [shard.sha256 for entry in languages for shard in entry.files]
    return files.fingerprint("\n".join(hashes))


def _describe_phase(phase):
    """What decides the order of an earlier phase's data."""
    return {
        "steps": phase.last - phase.first,
        "masking": vars(phase.config.masking),
        "sampling": vars(phase.config.sampling),
        "sequences": _sequences(phase),
        "batch_size": phase.config.training.batch_size,
    }


def _initial_checkpoint(path, pieces) -> str | None:
    """The prefix that `path` names, or None; it must have the pieces of the records."""
    if path is None:
        return None
    source = open_model(path)
    if source.vocabulary.fingerprint != pieces.fingerprint:
        raise UserError(
            f"--init_checkpoint: {path} has another vocabulary than {pieces.path}; "
            "build the records with its sentencepiece.model"
        )
    return source.weights.path


def _trunk(path, folder, description, config, contents) -> str | None:
    """The prefix of the run's checkpoint that `path` names; None if `folder` already
    has checkpoints."""
    if path is None:
        return None
    # A branch with checkpoints no longer needs its trunk, which may have moved on.
    if files.exists(os.path.join(folder, CHECKPOINT_LIST)):
        console.say(f"--branch_from: not read, {folder} has checkpoints of its own")
        return None
    prefix = find_checkpoint(path)
    trunk = path if gfile.isdir(path) else os.path.dirname(path)
    differing = run_folder.differences_in_words(trunk, description, contents)
    if differing:
        raise UserError(
            f"--branch_from: {path} is of another run: {'; '.join(differing)}; a "
            "branch has its trunk's model and data, and may change schedule and "
            "optimizer alone"
        )
    step, begins = checkpoint_step(prefix), config.schedule.decay_begins
    if step > begins:
        raise UserError(
            f"--branch_from: {prefix} is of step {step}, but the decay would begin at "
            f"step {begins}; give more train_steps or fewer ScheduleConfig.decay_steps"
        )
    return prefix


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


def stream_seed(seed: int, number: int) -> int:
    """The seed of a phase's data: each phase has an order and masks of its own.

    The first phase, number 0, uses `TrainingConfig.seed` unchanged.
    """
    if not number:
        return seed
    return int(numpy_bits(seed, Stream.PHASE, number)[()] >> np.uint64(1))


def _sampling_rows(phase, manifest) -> list[LanguageRow]:
    """A row per language. Raises UserError if the records are too few for it."""
    config = phase.config
    length = config.masking.sequence_length
    return sampling_rows(manifest, config.sampling, length, phase.sequences)


def _sequences(phase) -> int | None:
    """How many sequences a phase draws, if their order depends on it, else None."""
    return phase.sequences if phase.config.sampling.limits_epochs else None


def _show_sampling(rows, phase, config, folder):
    earlier = phase.number < len(config.earlier_phases)
    name = f"sampling_phase_{phase.number + 1}.json" if earlier else SAMPLING
    path = os.path.join(folder, name)
    files.write_json(path, as_json(rows))
    title = f"phase {phase.number + 1}: " if config.earlier_phases else ""
    alpha = phase.config.sampling.alpha
    print_rows(f"{title}{len(rows)} languages, alpha {alpha}", rows)
    console.say(f"the whole table: {path}")


def _weighted_average(results: dict[str, dict[str, float]]) -> dict[str, float]:
    total = sum(values[PREDICTED] for values in results.values())
    names = next(iter(results.values())).keys() - {PREDICTED}
    return {
        name: sum(v[name] * v[PREDICTED] for v in results.values()) / total
        for name in sorted(names)
    } | {PREDICTED: total}
