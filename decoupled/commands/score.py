"""Scores predictions for XTREME as its own evaluation script does.

  decoupled score --prediction_folder=P --label_folder=L --output=scores.json

P holds predictions in the submission format of XTREME: a folder per task, in it a file
per language, test-xx.tsv or test-xx.json. L holds the labels: either as the script
wants them, in files of the same names, or XTREME's download folder, with its labels:

  task           files below L, the first that is there; xx is the language
  xnli, pawsx    test-xx.tsv: a label a line; or sentence, sentence, label with tabs
  udpos, panx    test-xx.tsv: a tag a line, an empty line after each sentence; or token,
                 tab, tag
  xquad          test-xx.json, xquad.xx.json
  mlqa           test-xx.json, MLQA_V1/test/test-context-xx-question-xx.json
  tydiqa         test-xx.json; in tydiqa-goldp-v1.1-dev/: tydiqa.goldp.xx.dev.json,
                 tydiqa.xx.dev.json, tydiqa-goldp-dev-NAME.json, e.g. -swahili
  bucc2018       test-xx.tsv, xx-en.test.gold: id, tab, id
  tatoeba        test-xx.tsv: a line number a line; or xx-en.en, line by line the
                 translation of the other side: its lines' places once they are sorted

The folder of tatoeba's labels may be called tatoeba_parallel.

Prints scores per language, task and group, and over all; --output gets them as JSON,
named as the script names them. A task needs all its languages, a group all its tasks.
Languages that XTREME does not list for a task are scored in a table of their own
("outside_xtreme" in the JSON) and are in no average.
Scores are percentages. For udpos, f1 is that of seqeval 0.0.12, of XTREME's time, which
its own tests expect; f1_seqeval_1_2_2 is what the script gives with that release. For
panx, f1_strict_iob2 has only entities that begin with a B, as seqeval's strict mode.
"""

from absl import flags

from decoupled.core import files
from decoupled.xtreme.scoring import score, show

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string(
        "prediction_folder", None, "Folder of tasks with predictions.", required=True
    )
    flags.DEFINE_string(
        "label_folder", None, "Folder of tasks with labels.", required=True
    )
    flags.DEFINE_string("output", None, "JSON file to write.")
    flags.DEFINE_list(
        "tasks", None, "Only these, e.g. xnli,xquad; each must be there. Default: all."
    )
    flags.DEFINE_list(
        "languages",
        None,
        "Only these, e.g. en,sw: averages are over them, and a task has a score only "
        "if it has no other languages. Default: all, also those outside XTREME.",
    )
    flags.DEFINE_bool(
        "missing_answers_are_wrong",
        False,
        "Questions without an answer count 0, as for XTREME's script, and end nothing.",
    )


def main() -> None:
    """Scores, prints and writes."""
    if FLAGS.output:
        files.check_output("--output", FLAGS.output)
    result = score(
        FLAGS.prediction_folder,
        FLAGS.label_folder,
        FLAGS.tasks,
        FLAGS.languages,
        FLAGS.missing_answers_are_wrong,
    )
    if FLAGS.output:
        files.write_json(FLAGS.output, result)
    show(result)
