"""What happens around a step: saving, logging, stopping.

Plain classes without a loop of their own; `training.loop` calls them around each run of
its session, which is one step, or on a TPU several.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from decoupled.configs.hardware import HOST, Hardware, TpuAddress
from decoupled.core import endings, files, gfile, hosts
from decoupled.core.compat import mtf, tf
from decoupled.core.console import duration
from decoupled.core.errors import UserError
from decoupled.training.checkpoints import (
    listed_checkpoints,
    remove_checkpoint,
    sync_checkpoint,
    write_list,
)
from decoupled.training.events import (
    PERCENT,
    event_writer,
    events_written,
    scalar_summary,
)
from decoupled.training.partitioned_tables import PartitionedSaverBuilder

# Seconds after which a run is saved, even if it has made few steps.
MOST_SECONDS, FIRST_SECONDS = 900.0, 120.0
# Of several processes the first one decides; it is asked once in so many steps.
_ASK_EVERY = 10
_CTRL_C = "Ctrl-C: saving after this step (a TPU: this loop); once more ends at once"


class Checkpoints:
    """Saves weights, slots and the step every `every_steps` steps and at the end.

    However long steps take, a checkpoint is at most 15 minutes and a step old (of
    several processes, ten steps), or so old that saving takes a twentieth of the time.
    The first one of a new run comes after two minutes, so that a full disk or missing
    rights show while the user still looks. Such a checkpoint is gone with the next one,
    so that it takes no other one's place.

    `write` writes a checkpoint of the present step with a prefix. `keep` of the newest
    stay; 0 keeps all.
    """

    def __init__(
        self, model_dir: str, every_steps: int, keep: int, write: Callable[[str], None]
    ):
        self._folder, self._every_steps, self._keep = model_dir, every_steps, keep
        self._write, self._saved_step = write, None
        # Whether the clock alone saves the next one, and the last one that it saved so.
        self._by_clock, self._temporary_prefix = False, None
        is_new = not files.exists(os.path.join(model_dir, files.CHECKPOINT_LIST))
        self._deadline = time.monotonic() + (FIRST_SECONDS if is_new else MOST_SECONDS)

    def is_due(self, old_step: int, step: int) -> bool:
        """Whether it is time to save after the steps from `old_step` to `step`."""
        if step // self._every_steps > old_step // self._every_steps:
            return True
        # Alone, a process need not wait for an answer.
        asks = hosts.count() == 1 or step // _ASK_EVERY > old_step // _ASK_EVERY
        self._by_clock = asks and self._is_late()
        return self._by_clock

    @hosts.by_first
    def _is_late(self):
        return time.monotonic() > self._deadline

    def save(self, step: int) -> None:
        """Saves a step, unless it was the last one that was saved."""
        if step == self._saved_step:
            return
        prefix, start = f"{self._folder}/model.ckpt-{step}", time.monotonic()
        try:
            self._write(prefix)
            sync_checkpoint(prefix)
            self._list(prefix)
        except gfile.OpError as error:
            self._check_folder(error)
            self._remove_parts(prefix)
            raise UserError(
                f"{prefix}: cannot be saved ({files.reason(error)}); "
                "what was saved before is whole: make room, and run again to go on"
            ) from error
        except ValueError as error:
            # The Saver's error for a folder that does not exist.
            self._check_folder(error)
            raise
        self._temporary_prefix = prefix if self._by_clock else None
        self._by_clock, self._saved_step, now = False, step, time.monotonic()
        self._deadline = now + max(MOST_SECONDS, 20 * (now - start))

    def _list(self, prefix):
        """Names the checkpoint in the folder's list, and removes the oldest ones."""
        prefixes = listed_checkpoints(self._folder)
        prefixes = [path for path in prefixes if path != prefix] + [prefix]
        kept_paths = [path for path in prefixes if path != self._temporary_prefix]
        kept_paths = kept_paths[-self._keep :] if self._keep else kept_paths
        dropped_paths = [path for path in prefixes if path not in kept_paths]
        write_list(self._folder, kept_paths)
        for path in dropped_paths:
            remove_checkpoint(path)

    def _check_folder(self, error):
        if not gfile.isdir(self._folder):
            raise UserError(
                f"{self._folder}: is gone: something else removed it while this "
                "command trained; run it again"
            ) from error

    def _remove_parts(self, prefix):
        for path in gfile.glob(prefix, "_temp*"):
            gfile.rmtree(path)


class SessionWriter:
    """Writes the checkpoints of a session; to be made while the graph is built.

    Mesh-TensorFlow trains slices; they are copied to the variables that are saved. The
    stock hook writes the graph with every checkpoint, which takes longer than writing
    the weights of a small model. Nobody reads this graph, because it is built from the
    configuration.
    """

    def __init__(self, lowering: mtf.Lowering):
        self._lowering = lowering
        self._saver = tf.train.Saver(
            tf.global_variables(),
            sharded=True,
            max_to_keep=None,
            save_relative_paths=True,
            builder=PartitionedSaverBuilder(),
        )
        # Otherwise the Estimator adds a saver of its own.
        tf.add_to_collection(tf.GraphKeys.SAVERS, self._saver)

    def begin(self) -> None:
        """Adds the copy operations to the graph."""
        self._copy = self._lowering.copy_slices_to_masters()

    def write(self, session: tf.Session, prefix: str) -> None:
        """Writes a checkpoint without naming it in the folder's list."""
        session.run(self._copy)
        self._saver.save(session, prefix, write_meta_graph=False, write_state=False)


class StopOnSignal:
    """Ends the loop after the current step on SIGTERM, SIGHUP or Ctrl-C; the saver then
    saves.

    A second Ctrl-C ends the process at once. `signal_number` is the signal that
    came, or None.
    """

    def __init__(self):
        self.signal_number: int | None = None
        self._old_handlers, self._handlers = {}, {}

    def begin(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._old_handlers[number] = signal.getsignal(number)
            # Ctrl-C may be ignored, as for a background job of a script, and SIGHUP, as
            # under nohup.
            is_ignored = self._old_handlers[number] == signal.SIG_IGN
            self._handlers[number] = signal.SIG_IGN if is_ignored else self._handle
        self.install()

    def install(self) -> None:
        """Installs the handlers again. On a TPU, TPUEstimator's own hook makes Ctrl-C
        end the process at once, before every loop."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number, _):
        self.signal_number = number
        if number == signal.SIGINT:
            # Python's own handlers would wait until TensorFlow returns.
            self._handlers[number] = signal.SIG_DFL
            self.install()
            # Not print: the signal may have come while something is printed.
            endings.write_line(_CTRL_C)

    def after_steps(self) -> bool:
        return self.signal_number is not None

    def restore(self):
        """Puts the former handlers back; also where the loop ended in an error."""
        while self._old_handlers:
            signal.signal(*self._old_handlers.popitem())


class Progress:
    """Progress on the terminal for a TPU, whose host writes the scalars.

    `waited_seconds`: how long devices had nothing to do, because no batch was there.
    """

    def __init__(self, batch_size: int, total_steps: int, say: Callable[[str], None]):
        self._batch_size, self._total_steps, self._say = batch_size, total_steps, say
        self.waited_seconds = 0.0

    def begin(self, step: int) -> None:
        """Starts the clock at the step that the run starts from."""
        self._start = (step, time.monotonic())

    def tensors(self, step: int) -> dict[str, tf.Tensor]:
        """What a run of the session that ends at `step` computes for `after_steps`."""
        return {}

    def after_steps(self, step: int, values: dict[str, float]) -> None:
        self._print(step, "")

    def end(self) -> None:
        """After the last step."""

    def _print(self, step, scalars):
        steps, seconds = step - self._start[0], time.monotonic() - self._start[1]
        rate = steps / max(seconds, 1e-9)
        seconds_left = (self._total_steps - step) / max(rate, 1e-9)
        share = self.waited_seconds / max(seconds, 1e-9)
        wait_note = f"  waits for input {share:.0%}" if share >= 0.01 else ""
        self._say(
            f"step {step}/{self._total_steps}  {scalars}"
            f"{rate * self._batch_size:.0f} examples/s  "
            f"{duration(seconds_left)} left{wait_note}"
        )


class Monitor(Progress):
    """Progress on the terminal, scalars for TensorBoard, and a stop on NaN.

    Every `log_steps` steps, and at the last one, it writes loss, metrics, learning
    rate, gradient norm and speed to the event file of `model_dir`. When it does so, it
    also prints a line with the time left, but at most every few seconds; where steps
    are slow, also in between. `scalars` are float32 tensors by name; those of CHECKED
    are among them.
    """

    # A finite loss may have an infinite or NaN gradient, which makes the weights NaN.
    CHECKED = ("loss", "gradient_norm")
    # Seconds after which a logged step, and any step, has a progress line.
    INTERVAL, LONGEST = 5.0, 300.0

    def __init__(self, model_dir, scalars, log_steps, batch_size, total_steps, say):
        super().__init__(batch_size, total_steps, say)
        self._model_dir = model_dir
        self._scalars = scalars
        self._log_steps = log_steps

    def begin(self, step):
        super().begin(step)
        self._writer = event_writer(self._model_dir, step)
        self._mark = self._start
        self._print_time = time.monotonic()

    def tensors(self, step):
        """What is checked every step, and the rest when it is logged."""
        names = self._scalars if self._is_logged(step) else self.CHECKED
        return {name: self._scalars[name] for name in names}

    def after_steps(self, step, values):
        for name in self.CHECKED:
            if not math.isfinite(values[name]):
                raise Diverged(f"training: {name} is {values[name]} at step {step}")
        interval = self.LONGEST
        if self._is_logged(step):
            self._write(step, values)
            interval = self.INTERVAL
        now = time.monotonic()
        if now - self._print_time >= interval or step == self._total_steps:
            self._print_time = time.monotonic()
            self._print(step, f"{_in_words(values)}  ")

    def end(self):
        if self._writer is not None:
            with events_written(self._model_dir):
                self._writer.close()

    def _is_logged(self, step):
        return step % self._log_steps == 0 or step == self._total_steps

    def _write(self, step, values):
        now = time.monotonic()
        steps, seconds = step - self._mark[0], now - self._mark[1]
        if steps and seconds:
            rate = steps / seconds
            values = {
                **values,
                "global_step/sec": rate,
                "examples/sec": rate * self._batch_size,
            }
        self._mark = (step, now)
        if self._writer is not None:
            with events_written(self._model_dir):
                self._writer.add_summary(scalar_summary(values), step)
                self._writer.flush()


def _in_words(values):
    return "  ".join(
        f"{name.removesuffix(PERCENT)} {values[name]:.2f}%"
        if name.endswith(PERCENT)
        else f"{name} {float(values[name]):.4g}"
        for name in values
        if name in ("loss", "learning_rate") or name.endswith(PERCENT)
    )


class Diverged(UserError):
    """A run whose loss or gradient is infinite or NaN; the message says where."""


class Run(NamedTuple):
    """Where a network is trained and predicts, and its bookkeeping.

    init_checkpoint: prefix that a new run starts from, or None; and `drawn_names`, the
      variables of heads that it does not take over.
    stop: ends training on a signal.
    """

    model_dir: str
    init_checkpoint: str | None
    say: Callable[[str], None]
    stop: StopOnSignal
    hardware: Hardware = HOST
    drawn_names: tuple[str, ...] = ()

    @property
    def accelerator(self) -> str | None:
        return self.hardware.accelerator

    @property
    def tpu(self) -> TpuAddress | None:
        return self.hardware.tpu

    @property
    def on_tpu(self) -> bool:
        """Whether lengths and layouts are those of TPUs."""
        return self.tpu is not None or self.accelerator == "tpu"
