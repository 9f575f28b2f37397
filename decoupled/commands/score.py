"""Scores predictions for XTREME as its own evaluation script does.

  decoupled score --prediction_folder=P --label_folder=L --output=scores.json

P has predictions in the submission format of XTREME: a folder per task with a file per
language, test-xx.tsv or test-xx.json. L has the labels. It has files of the same names,
as XTREME's script reads them, or it is XTREME's download folder with labels:

  task           files below L, of which the first that exists is read; xx is the
                 language
  xnli, pawsx    test-xx.tsv: a label per line; or sentence, sentence, label with tabs
  udpos, panx    test-xx.tsv: a tag per line, an empty line after each sentence; or
                 token, tab, tag
  xquad          test-xx.json, xquad.xx.json
  mlqa           test-xx.json, MLQA_V1/test/test-context-xx-question-xx.json
  tydiqa         test-xx.json; in tydiqa-goldp-v1.1-dev/: tydiqa.goldp.xx.dev.json,
                 tydiqa.xx.dev.json, tydiqa-goldp-dev-NAME.json, e.g. -swahili
  bucc2018       test-xx.tsv, xx-en.test.gold: id, tab, id
  tatoeba        test-xx.tsv: a line number per line; or xx-en.en, line by line the
                 translations of the other side; the labels are their line numbers after
                 sorting

The folder of tatoeba's labels may be called tatoeba_parallel.

Prints scores per language, task and group, and over all. --output gets them as JSON
with the names of XTREME's script. A task has a score only with all its languages, and a
group only with all its tasks. Beside them stand the paper's scores of RemBERT and XLM-R
large on XTREME's test files. Languages that XTREME does not list for a task are scored
in a separate table ("outside_xtreme" in the JSON) and are in no average.

Scores are percentages. For udpos, f1 is that of seqeval 0.0.12, the release of XTREME's
time, which XTREME's tests expect; f1_seqeval_1_2_2 is the value that the script gives
with release 1.2.2.
"""

from absl import flags

from decoupled.core import console, files
from decoupled.studies import published
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
        "tasks", None, "Only these, e.g. xnli,xquad; each must exist. Default: all."
    )
    flags.DEFINE_list(
        "languages",
        None,
        "Only these, e.g. en,sw. Averages are over them, and a task has a score only "
        "if all its languages are given. Default: all, including those outside XTREME.",
    )
    flags.DEFINE_bool(
        "missing_answers_are_wrong",
        False,
        "Count questions without an answer as 0, as XTREME's script does, instead of "
        "ending with an error.",
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
    show(result, published.printed_on_test())
    scores = ", ".join(f"{name} {x}" for name, x in published.TRANSLATED.items())
    console.say(
        "RemBERT and XLM-R large: the paper's Tables 7 and 16. Table 7 also has, by "
        f"group, {scores}, which use translations or data of other tasks."
    )
