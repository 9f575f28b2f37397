"""Which checkpoint a run starts from: resume, initialise, refuse.

Order of precedence, printed when a run starts:
1. the newest complete checkpoint of the run's own folder (resume);
2. a given initial checkpoint (fine-tuning, or continued pre-training);
3. initial weights drawn from the seed.
"""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from decoupled.core import console, files, gfile, hosts
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.core.files import CHECKPOINT_LIST, check_checkpoint_path
from decoupled.model.variables import Role, Variable, is_moment, is_slot
from decoupled.training.checkpoint_files import CheckpointFile, check_prefix

# Heads, which are drawn from the seed if a checkpoint lacks them.
_HEADS = (Role.POOLER, Role.TASK_HEAD, Role.MLM_HEAD, Role.OUTPUT_EMBEDDING)
# These are also drawn from the seed if a checkpoint has another shape. A new run may
# have an output embedding of another size than its initial checkpoint, or other labels.
_RESIZABLE = (Role.MLM_HEAD, Role.OUTPUT_EMBEDDING, Role.TASK_HEAD)

_PATTERN = re.compile(r"[*?\[\]]")
# The data of a checkpoint that a run saved.
_DATA = re.compile(r"(model\.ckpt-\d+)\.data-\d{5}-of-\d{5}")
# Damaged checkpoints that this process has reported.
_reported_prefixes: set[str] = set()
# Prefix of a checkpoint that this process has read as a whole -> the state of its files
# at that time.
_states_when_read: dict[str, list[tuple[str, int, int]]] = {}


class Report(NamedTuple):
    """The names of variables that an initial checkpoint has and lacks.

    restored: taken over. fresh: drawn from the seed, since the checkpoint has none that
    fits. dropped: in the checkpoint, but not used (slots are not listed).
    """

    restored: list[str]
    fresh: list[str]
    dropped: list[str]

    def lines(self, checkpoint: str) -> list[str]:
        """The report as a user reads it."""
        lines = [f"initialised {len(self.restored)} variables from {checkpoint}"]
        if self.fresh:
            lines.append(f"  drawn from the seed: {', '.join(self.fresh)}")
        if self.dropped:
            lines.append(f"  not used: {', '.join(_summary(self.dropped))}")
        return lines


def _summary(names):
    return sorted({re.sub(r"(/layer_\d+)/.*", r"\1/*", name) for name in names})


@hosts.by_first
def find_checkpoint(path: str) -> str:
    """The prefix of a complete checkpoint given as a folder or as a prefix."""
    if tf.io.gfile.isdir(path):
        prefix = latest_complete(path)
        if prefix is None:
            raise UserError(f"{path}: no complete checkpoint (model.ckpt-N.index)")
        return prefix
    check_prefix(path)
    if not tf.io.gfile.exists(f"{path}.index"):
        raise UserError(
            f"{path}: no such folder, and no checkpoint of that name (its .index file "
            "is missing)"
        )
    problem = _problem(path)
    if problem:
        raise UserError(f"{path}: {problem}")
    return path


@hosts.by_first
def latest_complete(model_dir: str) -> str | None:
    """The newest complete checkpoint of a folder, or None.

    Where the newest is damaged, or no `checkpoint` file lists them, a line says so, and
    that file is rewritten to name the newest one that is complete, since the Estimator
    restores what it names. A folder whose list has damaged ones alone is refused.
    """
    check_checkpoint_path(model_dir)
    is_listed = files.exists(os.path.join(model_dir, CHECKPOINT_LIST))
    names = _listed_names(model_dir)
    prefixes = listed_checkpoints(model_dir)
    if not prefixes:
        return None
    problems: dict[str, str] = {}
    for count in range(len(prefixes), 0, -1):
        prefix = prefixes[count - 1]
        problem = _problem(prefix)
        if problem is None:
            _pass_over(problems, prefix)
            if not is_listed:
                console.say(
                    f"{model_dir}: has no list of checkpoints ({CHECKPOINT_LIST}); "
                    f"{prefix} is the newest one there"
                )
            if problems or names != prefixes or not is_listed:
                # A command that only reads a run may lack permission to write there,
                # and a training may have saved, and removed what was read, meanwhile.
                with contextlib.suppress(gfile.OpError):
                    if _listed_names(model_dir) == names:
                        write_list(model_dir, prefixes[:count])
            return prefix
        problems[prefix] = problem
    if not is_listed:
        # The first one of a run may have been cut off before it was listed.
        _pass_over(problems, "nothing")
        return None
    raise UserError(
        f"{model_dir}: none of its {len(prefixes)} checkpoints is complete "
        f"({problems[prefixes[-1]]}); restore a copy or use a new folder"
    )


@hosts.by_first
def remove_unfinished(model_dir: str) -> None:
    """Removes what a killed process left while it saved or removed a checkpoint:
    temporary folders, and data without an index that no list names."""
    for path in gfile.glob(f"{model_dir}/", "model.ckpt-*_temp*"):
        if gfile.isdir(path):
            gfile.rmtree(path)
    if not gfile.isdir(model_dir):
        return
    listed_names = {os.path.basename(path) for path in listed_checkpoints(model_dir)}
    names = set(gfile.listdir(model_dir))
    for name in names:
        match = _DATA.fullmatch(name)
        if match and match[1] not in listed_names and f"{match[1]}.index" not in names:
            gfile.remove(os.path.join(model_dir, name))


def _pass_over(problems, substitute):
    """Says once in a process which checkpoints are not used, and why."""
    for prefix, problem in problems.items():
        if prefix not in _reported_prefixes:
            console.say(f"{prefix}: {problem}; {substitute} is used instead")
        _reported_prefixes.add(prefix)


@hosts.by_first
def remove_checkpoint(prefix: str) -> None:
    """Removes the files of a checkpoint that no list names any more.

    The index goes first, so that what a kill leaves is no complete checkpoint, and is
    removed by `remove_unfinished`.
    """
    for path in gfile.glob(prefix, ".index") + gfile.glob(prefix, ".data-*"):
        gfile.remove(path)


def write_list(folder: str, prefixes: Sequence[str]) -> None:
    """Replaces the list of a folder's checkpoints, the oldest first."""
    # Names without folders, so that the folder can be moved.
    names = [os.path.basename(prefix) for prefix in prefixes]
    lines = [f'all_model_checkpoint_paths: "{name}"' for name in names]
    text = "\n".join([f'model_checkpoint_path: "{names[-1]}"', *lines, ""])
    files.write_text(os.path.join(folder, CHECKPOINT_LIST), text)


def listed_checkpoints(folder: str) -> list[str]:
    """The prefixes in a folder's list of checkpoints, the oldest first.

    All of them are in the folder, so that nothing outside it is read or deleted. A list
    with absolute names may be that of a folder that was moved.
    """
    return [_prefix_in(folder, name) for name in _listed_names(folder)]


def _prefix_in(folder, name):
    start, base = f"{folder.rstrip('/')}/", os.path.basename(name)
    prefix = start + base
    # TensorFlow takes a name for a pattern when it deletes files.
    is_name = files.is_below(base) and not _PATTERN.search(base)
    if is_name and (name == prefix or not name.startswith(start)):
        if name == prefix or files.exists(f"{prefix}.index"):
            return prefix
    path = os.path.join(folder, CHECKPOINT_LIST)
    raise UserError(
        f"{path}: names {name!r}, which is no checkpoint in this folder; write "
        'model_checkpoint_path: "model.ckpt-N" with the newest N into it, or restore '
        "a copy"
    )


def _listed_names(model_dir):
    path = os.path.join(model_dir, CHECKPOINT_LIST)
    if not files.exists(path):
        return _unlisted_prefixes(model_dir)
    try:
        state = tf.train.get_checkpoint_state(model_dir)
    except ValueError:
        state = None
    if state is None:
        raise UserError(
            f"{path}: cannot be read; write model_checkpoint_path: "
            '"model.ckpt-N" with the newest N into it, or use a new folder'
        )
    # Written by hand, as our message advises, the file may name one checkpoint only, or
    # an earlier one. The Estimator restores that one; later ones are not of this run.
    newest, names = state.model_checkpoint_path, list(state.all_model_checkpoint_paths)
    return [*names[: names.index(newest) if newest in names else None], newest]


def _unlisted_prefixes(model_dir):
    """The checkpoints in a folder whose list was removed, the oldest first."""
    start = os.path.join(model_dir, "model.ckpt-")
    by_step = {}
    for path in gfile.glob(start, "*.index"):
        step = path.removeprefix(start).removesuffix(".index")
        if step.isdecimal():
            by_step[int(step)] = f"{start}{step}"
    return [by_step[step] for step in sorted(by_step)]


def _problem(prefix: str) -> str | None:
    """Why a checkpoint cannot be read, or None.

    All of it is read, which takes minutes for a large model, and again only after one
    of its files has changed.
    """
    check_checkpoint_path(prefix)
    if not tf.io.gfile.exists(f"{prefix}.index"):
        return "no such checkpoint (its .index file is missing)"
    try:
        # Taken before reading, so that files that change meanwhile are read again.
        state = _state_of_files(prefix)
        if _states_when_read.get(prefix) != state:
            _read_all(prefix)
            _states_when_read[prefix] = state
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        return f"cannot be read: {files.reason(error)}"
    return None


def _state_of_files(prefix: str) -> list[tuple[str, int, int]]:
    paths = gfile.glob(prefix, ".index") + gfile.glob(prefix, ".data-*")
    return [(path, gfile.size(path), gfile.changed_ns(path)) for path in paths]


def _read_all(prefix: str) -> None:
    """TensorFlow compares the checksum of each tensor that it reads."""
    reader = tf.train.load_checkpoint(prefix)
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)


def checkpoint_step(prefix: str | None) -> int:
    """The global step in a checkpoint; 0 for None."""
    if prefix is None:
        return 0
    return CheckpointFile(prefix).global_step or 0


@hosts.by_first
def sync_checkpoint(prefix: str) -> None:
    """Returns when the files of a checkpoint are on disk, before a list names it."""
    for path in gfile.glob(prefix, ".*"):
        gfile.sync(path)
    gfile.sync_names(os.path.dirname(prefix) or ".")


@hosts.by_first
def branch_off(trunk: str, model_dir: str) -> None:
    """Copies a checkpoint with its slots into a folder without any, whose run goes on
    from there."""
    copy = os.path.join(model_dir, os.path.basename(trunk))
    try:
        for source in gfile.glob(trunk, ".index") + gfile.glob(trunk, ".data-*"):
            target = copy + source.removeprefix(trunk)
            tf.io.gfile.copy(source, target, overwrite=True)
        sync_checkpoint(copy)
    except gfile.OpError as error:
        raise UserError(f"{copy}: cannot be saved ({files.reason(error)})") from error
    write_list(model_dir, [copy])


@hosts.by_first
def copy_without_slots(prefix: str, copy: str) -> None:
    """Copies what evaluation reads from a checkpoint: its weights and its step."""
    source = CheckpointFile(prefix)
    names = [name for name in source.shapes if not is_slot(name)]
    specs = [""] * len(names)
    with tf.Graph().as_default(), tf.device("cpu:0"):
        tensors = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=specs,
            dtypes=[source.dtypes[name] for name in names],
        )
        save = tf.raw_ops.SaveV2(
            prefix=copy, tensor_names=names, shape_and_slices=specs, tensors=tensors
        )
        try:
            with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
                session.run(save)
            sync_checkpoint(copy)
        except gfile.OpError as error:
            raise UserError(
                f"{copy}: cannot be saved ({files.reason(error)})"
            ) from error


def plan_initialization(
    checkpoint: str,
    variables: Mapping[str, Variable],
    drawn_names: Collection[str] = (),
) -> Report:
    """Matches a checkpoint's variables with those of a model and its head, by name.

    Optimizer slots and the step are never taken over from another run. A variable of
    the encoder that is missing or has another shape is refused. Heads that are missing,
    have another shape, or are among `drawn_names`, are drawn from the seed.
    """
    source = CheckpointFile(checkpoint)
    shapes, restored_names, fresh_names = source.shapes, [], []
    for name, variable in sorted(variables.items()):
        if name not in shapes:
            if variable.role not in _HEADS:
                raise UserError(
                    f"{checkpoint}: has no variable {name}; is it of this model?"
                )
            fresh_names.append(name)
        elif shapes[name] == variable.shape and name not in drawn_names:
            restored_names.append(name)
        elif variable.role in _RESIZABLE:
            fresh_names.append(name)
        else:
            raise UserError(
                f"{checkpoint}: variable {name} has shape {list(shapes[name])}, "
                f"the model needs {list(variable.shape)}; use the gin file that the "
                "checkpoint was trained with"
            )
    dropped_names = sorted(set(source) - set(restored_names))
    return Report(restored_names, fresh_names, dropped_names)


def check_optimizer(checkpoint: str) -> None:
    """Refuses the checkpoint of a run of an earlier version with another optimizer."""
    names = CheckpointFile(checkpoint).shapes
    if any(is_slot(name) and not is_moment(name) for name in names):
        raise UserError(
            f"{checkpoint}: was trained with Adafactor, which this version does not "
            "have; go on with the version that began the run, or give it as "
            "--init_checkpoint of a run with another --model_dir"
        )


def check_resumable(checkpoint: str, names: Iterable[str]) -> None:
    """Checks that a run's checkpoint has every variable of a graph. One of other frozen
    variables, or of another optimizer, lacks some."""
    saved_names = CheckpointFile(checkpoint).shapes
    for name in names:
        if name in saved_names:
            continue
        check_optimizer(checkpoint)
        if not any(map(is_slot, saved_names)):
            raise UserError(
                f"{checkpoint}: has no slots of an optimizer, so that no run goes on "
                "from it; give it as --init_checkpoint, with another --model_dir"
            )
        raise UserError(
            f"{checkpoint}: has no variable {name}; go on with the run's own frozen "
            "variables (OptimizerConfig.rates), or use another --model_dir"
        )


def plan_start(
    model_dir: str,
    init_checkpoint: str | None,
    variables: Mapping[str, Variable],
    saved_names: Iterable[str],
    say: Callable[[str], None],
    drawn_names: Collection[str] = (),
) -> tuple[str | None, list[str]]:
    """The checkpoint from which the run of a folder goes on; or None, and the names of
    the variables that it takes over from its initial checkpoint.

    `variables` are those of the model, `saved_names` are those in its
    checkpoints, and `drawn_names` those of heads that are not taken over.
    """
    checkpoint = latest_complete(model_dir)
    if checkpoint is not None:
        check_resumable(checkpoint, saved_names)
        return checkpoint, []
    if init_checkpoint is None:
        return None, []
    report = plan_initialization(init_checkpoint, variables, drawn_names)
    for line in report.lines(init_checkpoint):
        say(line)
    return None, report.restored
