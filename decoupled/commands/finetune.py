"""Fine-tunes a pre-trained encoder on an English task and evaluates it zero-shot.

Reads a pre-training run (--init_checkpoint: its folder or one of its checkpoints)
without the output embedding and the MLM head. Reads the task's files below --data_dir:
XTREME's download folder for its tasks, the folder `tasks` of a corpus for `catalogs`,
a folder with sib200/ for `sib200`. Trains on English and evaluates the dev and test
files of every language. `own` is a task in your own files, which OwnTaskConfig
describes (docs/own_data.md):

  decoupled finetune --task=own --gin_file=tasks/own_texts.gin --data_dir=DATA \\
      --init_checkpoint=runs/decoupled --model_dir=runs/topics

  decoupled finetune --task=xnli --gin_file=tasks/table_10.gin --data_dir=DATA \\
      --init_checkpoint=runs/decoupled --model_dir=runs/decoupled_xnli --num_runs=3

Every TrainingConfig.eval_every_steps steps a checkpoint is evaluated on English dev,
and the best one is selected. The best of FinetuningConfig.learning_rates is chosen on
English dev, too; --num_runs then repeats it with other seeds. A single rate and seed
train in --model_dir itself, several in learning_rate_R/seed_S/ below it. The same
command resumes an incomplete run and does not repeat complete ones. Dev and test files
that have changed are evaluated again. A folder with another model, or whose training
file has changed, is refused.

Examples are packed: a row of a batch holds several, and attention does not cross
between them.

--mode: train_and_evaluate (default), train, eval, predict (no labels needed).
--splits=dev leaves out the test files, which may take longer than the training.
Writes to --model_dir
  results.json, .png, .svg                 scores per language, in percent, beside
                                           those of the trivial baseline;
                                           languages that XTREME does not list for the
                                           task are marked and in no mean
  best/                                    the selected checkpoint
  predictions/TASK/SPLIT-LANGUAGE.tsv      of the best run, in XTREME's format (.json
                                           for questions); each run has its own, too:
      decoupled score --prediction_folder=MODEL_DIR/predictions \\
          --label_folder=DATA
  predictions.json                         of which weights, settings and files they
                                           are; those of others are removed
  features/                                tokenised files, unless in --feature_dir

SIGTERM and Ctrl-C end training after it has saved, with exit codes 143 and 130. The
same command resumes it.
"""

import os
from collections.abc import Sequence

from absl import flags

from decoupled.configs import FinetuneConfig
from decoupled.configs.checks import unused_settings
from decoupled.configs.finetuning import QUESTION_ANSWERING
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core import console, files
from decoupled.launch import hardware_flags, start
from decoupled.runs.run_folder import (
    MODES,
    PREDICTIONS,
    SPLITS,
    TRAINING_MODES,
    opened,
)


def define_flags() -> None:
    """The command's flags."""
    from decoupled.tasks.presets import OWN, TASKS

    start.define_gin_flags()
    hardware_flags.define()
    flags.DEFINE_enum("task", None, [*sorted(TASKS), OWN], "The task to learn.")
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_string(
        "init_checkpoint", None, "A pre-training run's folder, or a prefix."
    )
    flags.DEFINE_string("model_dir", None, "Folder of the run, created if missing.")
    flags.DEFINE_enum("mode", "train_and_evaluate", MODES, "What to do.")
    flags.DEFINE_integer(
        "num_runs",
        1,
        "Number of runs, with seeds from TrainingConfig.seed on; means and standard "
        "deviations are reported.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "feature_dir",
        None,
        "Folder for tokenised files, which several runs can share. Default: features/ "
        "in --model_dir.",
    )
    flags.DEFINE_enum(
        "splits",
        ",".join(SPLITS),
        [*SPLITS, ",".join(SPLITS)],
        "The files that are evaluated and predicted.",
    )
    flags.mark_flags_as_required(["task", "data_dir", "init_checkpoint", "model_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    from decoupled.tasks.presets import TASKS

    options = flags.FLAGS
    config = start.parse_gin(FinetuneConfig, task=options.task, tasks=TASKS)
    hardware = hardware_flags.parse()
    only_reads = options.mode not in TRAINING_MODES
    with opened(options.model_dir, hardware, start.facts(), only_reads):
        run_finetuning(
            config,
            options.task,
            options.data_dir,
            options.init_checkpoint,
            options.model_dir,
            options.mode,
            options.num_runs,
            options.feature_dir,
            hardware,
            options.splits.split(","),
        )


def run_finetuning(
    config: FinetuneConfig,
    task_name: str,
    data_dir: str,
    init_checkpoint: str,
    folder: str,
    mode: str,
    num_runs: int = 1,
    feature_dir: str | None = None,
    hardware: Hardware = HOST,
    splits: Sequence[str] = SPLITS,
) -> None:
    """Trains, evaluates or predicts; see the module's docstring and its flags.

    Raises:
      UserError: checkpoint, task files, settings and folder do not fit each other.
    """
    from decoupled.core import plots
    from decoupled.runs import finetuning
    from decoupled.runs.finetuning_plan import plan_finetuning
    from decoupled.tasks.presets import make_task

    task = make_task(
        task_name,
        data_dir,
        config.finetuning,
        config.question_answering,
        config.own_task,
    )
    questions = config.question_answering
    if questions and task.kind != QUESTION_ANSWERING:
        why = f"{task_name} is {task.kind}"
        for line in unused_settings(questions, vars(questions), why):
            console.say(line)
    cache = feature_dir or os.path.join(folder, "features")
    plan = plan_finetuning(
        config, task, init_checkpoint, folder, mode, num_runs, cache, hardware, splits
    )
    finetuning.claim_folders(plan)
    start.save_start(folder)
    plan.data.say_what_is_missing()
    if mode in ("eval", "train_and_evaluate"):
        plots.can_draw()
    if mode in TRAINING_MODES:
        finetuning.train(plan)
    finetuning.keep_best(plan)
    if mode == "predict":
        finetuning.best_run(plan).predict(folder)
        console.say(f"wrote {os.path.join(folder, PREDICTIONS, task.name)}")
    elif mode == "train":
        _say_if_trivial(plan, finetuning.best_run(plan).dev_results())
    else:
        _report(plan, finetuning.evaluate(plan, repeat=mode == "eval"))


def _report(plan, results):
    from decoupled.core.made_from import MADE_FROM
    from decoupled.runs import finetuning
    from decoupled.runs.finetuning_run import ANSWER_SETTINGS
    from decoupled.studies import finetuning as finetuning_report

    task, folder = plan.task, plan.folder
    best_run = finetuning.best_run(plan)
    checkpoint = best_run.selected_checkpoint()
    means = finetuning_report.combine(results)
    summary = {
        "task": task.name,
        "headline": list(task.headline),
        **finetuning.summary(plan),
        ANSWER_SETTINGS: task.answer_settings(),
        MADE_FROM: results[finetuning.chosen_runs(plan).index(best_run)][MADE_FROM],
        "outside_xtreme": finetuning_report.outside_languages(task.name, means),
        **means,
    }
    stem = os.path.join(folder, "results")
    files.write_json(f"{stem}.json", summary)
    _print_runs(task, summary["runs"], f"{plan.data.source_name} dev")
    metrics = finetuning_report.shown_metrics(task.metrics, task.headline)
    seeds = len(results)
    spread = f"; mean ± standard deviation of {seeds} seeds" if seeds > 1 else ""
    names = plan.data.trained_on
    title = f"{task.name} at step {checkpoint.step}; trained on {names} only{spread}"
    finetuning_report.print_table(
        title, task.name, means, metrics, task.training_languages
    )
    paths = finetuning_report.plot_results(means, task, names, stem)
    console.say(f"results: {', '.join([f'{stem}.json', *paths])}")
    _say_if_trivial(plan, means)


def _say_if_trivial(plan, results):
    from decoupled.studies.finetuning import not_above_trivial

    source, rates = plan.data.source, plan.rates
    if sentence := not_above_trivial(results, plan.task, source, rates):
        console.say(sentence)


def _print_runs(task, runs, dev_name):
    if len(runs) == 1:
        return
    console.table(
        f"{task.name}: runs, by {' and '.join(task.headline)} on {dev_name}",
        ["learning rate", "seed", "step", dev_name],
        [
            [
                f"{r['learning_rate']:g}",
                r["seed"],
                r["global_step"],
                None if r["english_dev"] is None else f"{r['english_dev']:.2f}",
            ]
            for r in runs
        ],
    )
