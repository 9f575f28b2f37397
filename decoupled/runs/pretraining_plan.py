"""What is checked before the first step of pre-training, and the plan of the run."""

import dataclasses
import functools
import os

from decoupled.configs import ModelConfig, Phase, PretrainConfig
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core import console, files, gfile, hosts
from decoupled.core.errors import UserError
from decoupled.core.files import CHECKPOINT_LIST
from decoupled.corpora.sampling import LanguageRow
from decoupled.data.reading import check_sizes, count_pieces, named_errors
from decoupled.data.records import RecordsManifest, read_manifest
from decoupled.data.sequences import EVAL, TRAIN, evaluation_count, sampling_rows
from decoupled.data.vocabulary import Vocabulary, open_vocabulary
from decoupled.model.variables import (
    OUTPUT_BIAS,
    by_pattern,
    output_matrix,
    slots,
)
from decoupled.runs import run_folder
from decoupled.runs.curve import entropy
from decoupled.runs.run_folder import TRAINING_MODES
from decoupled.runs.saved_run import Model, open_model
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.checkpoint_files import CheckpointFile
from decoupled.training.checkpoints import (
    check_optimizer,
    checkpoint_step,
    find_checkpoint,
    plan_initialization,
)
from decoupled.training.graph import TrainingGraph, check_graph, pretraining_graph
from decoupled.training.loop import Run, check_devices
from decoupled.training.mesh import split_rows

# A language's unigram entropy is computed from whole shards with about so many tokens.
_COUNTED_TOKENS = 1_000_000


@dataclasses.dataclass(frozen=True)
class PretrainingPlan:
    """A run whose settings, records, weights and folder fit each other.

    phases: each with its graph.
    sampling: of each phase, a row per language; empty where nothing is trained.
    description, contents: of the folder; see `run_folder.claim`.
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
    contents: dict[str, str]
    trunk: str | None

    @property
    def folder(self) -> str:
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

    def phase(self, step: int) -> tuple[Phase, TrainingGraph]:
        """The phase of a step; the last if it is after all phases."""
        last_phase = self.phases[-1]
        return next((pair for pair in self.phases if step <= pair[0].last), last_phase)


def plan_pretraining(
    config: PretrainConfig,
    records_dir: str,
    vocabulary: str,
    folder: str,
    mode: str,
    hardware: Hardware = HOST,
    init_checkpoint: str | None = None,
    branch_from: str | None = None,
) -> PretrainingPlan:
    """Checks all that can be checked before the first step. Writes nothing.

    Args:
      init_checkpoint: a model folder, or a prefix in one, that a new run starts from.
      branch_from: a run, or a prefix of one of its checkpoints, from which a new run
        continues at its step and with its slots. Only schedule and the optimizer's
        settings may differ.
    """
    check_devices(hardware, config.mesh, console.say)
    config = with_whole_evaluations(config)
    manifest = read_manifest(records_dir)
    pieces = open_vocabulary(vocabulary)
    manifest.check_vocabulary(pieces.fingerprint, vocabulary)
    if config.model.vocab_size != pieces.size:
        raise UserError(
            f"ModelConfig.vocab_size: {config.model.vocab_size}, but {pieces.path} has "
            f"{pieces.size} pieces; make them equal"
        )
    sampling = []
    for phase in config.phases:
        if mode in TRAINING_MODES:
            sampling.append(_sampling_rows(phase, manifest))
        if mode != "train":
            held_out_counts(phase.config, manifest)
    source = _initial_model(init_checkpoint, pieces, config.model)
    prefix = source and source.weights.path
    check_sizes(manifest)
    phases = [(p, pretraining_graph(p.config, pieces.pad_id)) for p in config.phases]
    if prefix and branch_from is None and not _has_checkpoints(folder):
        variables = phases[0][1].network.variables
        restored_names = plan_initialization(prefix, variables).restored
        patterns = config.model.initial_values
        initial_values = by_pattern("ModelConfig.initial_values", patterns, variables)
        if ineffective_names := sorted(initial_values.keys() & set(restored_names)):
            console.say(
                "ModelConfig.initial_values has no effect on variables of "
                f"--init_checkpoint, such as {ineffective_names[0]}"
            )
        if line := _other_meaning(source, config.model, restored_names):
            console.say(line)
    for phase, graph in phases:
        check_graph(graph.network, phase.config.training, graph.frozen)
    description = _describe(config, manifest, pieces, prefix)
    held_out = f"the held-out text in {records_dir}"
    hosts.agree("held-out text", {held_out: _shards_sha256(manifest, EVAL)})
    contents = {
        "data.records": f"the corpus of {records_dir}",
        "data.shards": f"the training text in {records_dir}",
    }
    if prefix:
        contents["data.init_checkpoint_sha256"] = prefix
    run = Run(
        model_dir=folder,
        init_checkpoint=prefix,
        say=console.say,
        stop=StopOnSignal(),
        hardware=hardware,
    )
    return PretrainingPlan(
        config=config,
        mode=mode,
        manifest=manifest,
        vocabulary=pieces,
        phases=phases,
        sampling=sampling,
        run=run,
        description=description,
        contents=contents,
        trunk=_trunk(branch_from, folder, description, phases[-1][1], contents),
    )


def with_whole_evaluations(config: PretrainConfig) -> PretrainConfig:
    """Makes batches of evaluation as large as the mesh can split; sequences beyond the
    text count nothing."""
    rows = split_rows(config.mesh, config.training.eval_batch_size)
    training = dataclasses.replace(config.training, eval_batch_size=rows)
    return dataclasses.replace(config, training=training)


def held_out_counts(
    config: PretrainConfig, manifest: RecordsManifest
) -> dict[str, int]:
    """Language -> how many held-out sequences are evaluated, none of them 0."""
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
    *earlier_phases, _ = map(_describe_phase, config.phases)
    return run_folder.ModelDir(
        command="pretrain",
        model=config.model,
        vocabulary_fingerprint=pieces.fingerprint,
        vocabulary_kind=pieces.kind,
        task=None,
        data={
            "records": manifest.corpus_fingerprint,
            # The same text in other shards is read in another order.
            "shards": _shards_sha256(manifest, TRAIN),
            # Only if it is set, so that runs from before this setting can be resumed.
            "masking": vars(config.masking)
            | ({"whole_words": True} if config.whole_words else {}),
            "sampling": vars(config.sampling),
            "batch_size": config.training.batch_size,
            "seed": config.training.seed,
            # Only another one, so that runs from before this setting can be resumed.
            **({} if config.objective == "mlm" else {"objective": config.objective}),
            **({"rates": config.optimizer.rates} if config.optimizer.rates else {}),
            "matmul_precision": config.mesh.matmul_precision,
            "attention_kernel": config.mesh.attention_kernel,
            # Not the path: folders move.
            "init_checkpoint": prefix and os.path.basename(prefix),
        }
        | (
            {"init_checkpoint_sha256": run_folder.weights_sha256(prefix)}
            if prefix
            else {}
        )
        | ({"earlier_phases": earlier_phases} if earlier_phases else {}),
    )


def _shards_sha256(manifest, split) -> str:
    languages = manifest.splits.get(split, {}).values()
    hashes = [shard.sha256 for entry in languages for shard in entry.files]
    return files.fingerprint("\n".join(hashes))


def _describe_phase(phase):
    """What decides the order of an earlier phase's data."""
    return {
        "steps": phase.last - phase.first,
        "masking": vars(phase.config.masking),
        "sampling": vars(phase.config.sampling),
        "batch_size": phase.config.training.batch_size,
    }


# What a model computes with weights of the same shapes.
_COMPUTATION_SETTINGS = ("num_heads", "head_size", "activation", "layer_norm_epsilon")


def _initial_model(path, pieces, model) -> Model | None:
    if path is None:
        return None
    source = open_model(path)
    if source.vocabulary.fingerprint != pieces.fingerprint:
        raise UserError(
            f"--init_checkpoint: {path} has another vocabulary than {pieces.path}; "
            "build the records with its vocabulary"
        )
    rows, expected_rows = source.config.vocab_size, model.vocab_size
    if rows != expected_rows:
        raise UserError(
            f"--init_checkpoint: {path} has {rows} rows of embeddings, and "
            f"ModelConfig.vocab_size is {expected_rows}; decoupled convert vocabulary, "
            "with its own vocabulary, gives it a row for each piece"
        )
    names = list(_COMPUTATION_SETTINGS)
    if model.input_embedding_size == model.hidden_size:
        names.append("project_equal_widths")
    differences = [
        f"{name} = {old!r}, not {new!r}"
        for name in names
        if (old := getattr(source.config, name)) != (new := getattr(model, name))
    ]
    if differences:
        raise UserError(
            f"--init_checkpoint: the model of {path} has {', '.join(differences)}; its "
            "weights would compute something else"
        )
    return source


def _other_meaning(source: Model, model: ModelConfig, restored_names: list[str]) -> str:
    """A line if the model has the output embedding of the initial model, but not the
    layers that it was trained with; else ""."""
    transforms = [(c.mlm_transform, c.projects_output) for c in (source.config, model)]
    is_restored = output_matrix(model).name in restored_names
    has_head = OUTPUT_BIAS in source.weights and is_restored
    if not has_head or transforms[0] == transforms[1]:
        return ""
    source_transform, transform = (
        f"{kind!r} {'with' if projects else 'without'} a projection"
        for kind, projects in transforms
    )
    return (
        f"ModelConfig.mlm_transform: {transform}, and of --init_checkpoint "
        f"{source_transform}; its output embedding begins with another meaning"
    )


def _has_checkpoints(folder):
    return files.exists(os.path.join(folder, CHECKPOINT_LIST))


def _trunk(path, folder, description, graph, contents) -> str | None:
    """The prefix of the run's checkpoint that `path` names; None if `folder` already
    has checkpoints."""
    if path is None:
        return None
    # A branch with checkpoints no longer needs its trunk, which may have moved on.
    if _has_checkpoints(folder):
        console.say(f"--branch_from: not read, {folder} has checkpoints of its own")
        return None
    prefix = find_checkpoint(path)
    trunk = path if gfile.isdir(path) else os.path.dirname(path)
    # Rates of variables belong to the optimizer.
    data = description.data | {"rates": run_folder.read(trunk).data.get("rates")}
    conflicts = run_folder.differences_in_words(
        trunk, description._replace(data=data), contents
    )
    if conflicts:
        raise UserError(
            f"--branch_from: {path} is of another run: {'; '.join(conflicts)}; a "
            "branch has its trunk's model and data, and may change schedule and the "
            "optimizer's settings alone"
        )
    check_optimizer(prefix)
    shapes = CheckpointFile(prefix).shapes
    for name in graph.network.variables:
        if name not in graph.frozen and shapes.keys().isdisjoint(slots(name)):
            raise UserError(
                f"--branch_from: {prefix} has no slots of the optimizer for {name}; a "
                "branch trains no variable that its trunk has frozen "
                "(OptimizerConfig.rates)"
            )
    step, decay_start = checkpoint_step(prefix), graph.schedule.decay_begins
    if step > decay_start:
        raise UserError(
            f"--branch_from: {prefix} is of step {step}, but the decay would begin at "
            f"step {decay_start}; give more train_steps or fewer "
            "ScheduleConfig.decay_steps"
        )
    return prefix


def _sampling_rows(phase, manifest) -> list[LanguageRow]:
    config = phase.config
    length = config.masking.sequence_length
    return sampling_rows(manifest, config.sampling, length, phase.sequences)
