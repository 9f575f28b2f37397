"""Finds translations with sentence vectors: XTREME's Tatoeba and BUCC 2018.

Reads a model (--init_checkpoint: a folder that pretrain or finetune wrote, or one of
its checkpoints) and the sentences below --data_dir, in the layout of XTREME's download.
A sentence's vector is the mean over its tokens in one layer. Its translation is the
nearest English sentence, by cosine or by a margin. Nothing is trained; for BUCC a
threshold is tuned on the dev set's gold pairs.

Writes to --output_dir: predictions/TASK/test-LANGUAGE.tsv, which `decoupled score` and
XTREME's own script read; results.json has an entry for each language. If
the data have gold pairs, it has the scores beside those of random pairs. Languages that
XTREME does not list for the task are marked and in no mean. The same command continues
with the missing languages. A folder with other settings is refused.

  decoupled retrieve --task=tatoeba --data_dir=download \\
      --init_checkpoint=runs/decoupled --output_dir=runs/decoupled_tatoeba \\
      --gin_param='RetrievalConfig.layer = 8'

--gin_file=tasks/retrieval.gin has the settings of XTREME's baseline, for 12 layers.
docs/xtreme.md lists the files of a task.
"""

from absl import flags

from decoupled.configs import RetrieveConfig
from decoupled.core import locks
from decoupled.launch import hardware_flags, start

TASKS = ("tatoeba", "bucc2018")


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_enum("task", None, TASKS, "The task.")
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "A run's folder (its selected checkpoint, or else the newest), "
        "or the prefix of a checkpoint.",
    )
    flags.DEFINE_string("output_dir", None, "Folder of results, created if missing.")
    flags.DEFINE_list(
        "languages", None, "Only these languages, e.g. sw,th. Default: all."
    )
    hardware_flags.define_accelerator("All of these devices encode")
    flags.mark_flags_as_required(["task", "data_dir", "init_checkpoint", "output_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    options = flags.FLAGS
    config = start.parse_gin(RetrieveConfig, task=options.task, tasks=TASKS)
    with locks.hold(options.output_dir):
        from decoupled.analyses.retrieval import TranslationSearch

        search = TranslationSearch(
            config.retrieval,
            options.task,
            options.data_dir,
            options.init_checkpoint,
            options.output_dir,
            options.languages,
            options.accelerator,
        )
        start.save_start(options.output_dir)
        search.run()
