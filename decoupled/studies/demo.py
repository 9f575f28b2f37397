"""The demo: its steps, which are commands of this package, and its table and plot."""

import os
import resource
import statistics
import sys
import time

import numpy as np

from decoupled.analyses.output import LAYER, Line, Panel, Picture, draw
from decoupled.core import console, files, plots, tables
from decoupled.core.machine import readable_bytes
from decoupled.data.vocabulary import FILE_NAME
from decoupled.launch.supervision import Step, run_step, seconds_of_steps
from decoupled.model.parameters import finetuning_counts, pretraining_counts
from decoupled.runs import run_folder

# gin/models/demo_NAME.gin. The last two have the same size in fine-tuning.
MODELS = ("coupled", "small_output", "decoupled")
# Points of a curve.
_PARTS = 40
LANGUAGES = "en,de,nl,sv,nb,da,fr,es,it,pt,pl,ru"
SENTENCES = (
    "Enter a valid email address.",
    "Bitte eine gültige E-Mail-Adresse eingeben.",
    "Changer mon mot de passe",
    "Ha olvidado su contraseña",
)


def run_demo(work_dir: str) -> None:
    """Runs the steps, then writes the report.

    Raises:
      UserError: a step fails.
    """
    start = time.monotonic()
    steps = make_steps(work_dir)
    for number, step in enumerate(steps, start=1):
        title = f"[{number}/{len(steps)}] {step.title}"
        run_step(work_dir, step._replace(title=title))
    report(work_dir)
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    seconds = time.monotonic() - start
    console.say(
        f"{seconds:.0f} s in all; peak memory of the largest process "
        f"{readable_bytes(peak)}"
    )


def make_steps(work_dir: str) -> list[Step]:
    """The commands of the demo, in order."""
    corpus = os.path.join(work_dir, "corpus")
    return [
        corpus_step(corpus),
        vocabulary_step("demo", corpus, os.path.join(work_dir, "vocabulary")),
        records_step(corpus, _vocabulary(work_dir), os.path.join(work_dir, "records")),
        *(_pretraining_step(work_dir, model) for model in MODELS),
        _neighbours_step(work_dir),
        *(_finetuning_step(work_dir, model) for model in MODELS),
        *_export_steps(work_dir),
    ]


def _vocabulary(work_dir):
    return os.path.join(work_dir, "vocabulary", FILE_NAME)


def corpus_step(corpus: str) -> Step:
    """Text, a task and pairs from message catalogs."""
    command = [
        *("decoupled", "build_corpus"),
        "--source=catalogs:django",
        f"--languages={LANGUAGES}",
        f"--output_dir={corpus}",
    ]
    return Step("collect human-translated interface messages", "corpus", command)


def vocabulary_step(settings: str, corpus: str, folder: str) -> Step:
    """A vocabulary of a corpus, by gin/runs/SETTINGS_vocabulary.gin."""
    command = [
        *("decoupled", "build_vocabulary"),
        f"--gin_file=runs/{settings}_vocabulary.gin",
        f"--corpus_dir={corpus}",
        f"--output_dir={folder}",
    ]
    title = "train a vocabulary that all languages share"
    return Step(title, "vocabulary", command)


def records_step(corpus: str, vocabulary: str, folder: str) -> Step:
    """Writes the token ids of a corpus to `folder`."""
    command = [
        *("decoupled", "build_records"),
        f"--corpus_dir={corpus}",
        f"--vocabulary={vocabulary}",
        f"--output_dir={folder}",
    ]
    return Step("encode the text", "records", command)


def _pretraining_step(work_dir, model):
    command = [
        *("decoupled", "pretrain"),
        f"--gin_file=models/demo_{model}.gin",
        "--gin_file=runs/demo_pretrain.gin",
        f"--records_dir={work_dir}/records",
        f"--vocabulary={_vocabulary(work_dir)}",
        f"--model_dir={work_dir}/{model}",
    ]
    title = f"pre-train the model {model}: guess masked words"
    return Step(title, f"pretrain_{model}", command)


def _neighbours_step(work_dir):
    command = [
        *("decoupled", "analyze", "neighbours"),
        "--gin_file=runs/demo_neighbours.gin",
        *(f"--model_dir={work_dir}/{model}" for model in MODELS),
        f"--data_dir={work_dir}/corpus/parallel",
        f"--output_dir={work_dir}/neighbours",
    ]
    title = "look for the translations of held-out messages among nearest neighbours"
    return Step(title, "neighbours", command)


def _finetuning_step(work_dir, model):
    command = [
        *("decoupled", "finetune"),
        "--task=catalogs",
        "--gin_file=runs/demo_finetune.gin",
        f"--data_dir={work_dir}/corpus/tasks",
        f"--init_checkpoint={work_dir}/{model}",
        f"--model_dir={work_dir}/{model}_catalogs",
    ]
    title = f"fine-tune the model {model} on English, test it in all languages"
    return Step(title, f"finetune_{model}", command)


def _export_steps(work_dir):
    export = [
        *("decoupled", "export"),
        "--overwrite",
        f"--model_dir={work_dir}/decoupled_catalogs",
        f"--export_dir={work_dir}/export",
    ]
    package = os.path.dirname(os.path.dirname(__file__))
    script = os.path.join(package, "exports", "serving", "run_text_model.py")
    classifier = f"{work_dir}/export/text_classifier"
    # -I: modules are searched neither in the current folder nor in the script's.
    serve = [sys.executable, "-I", script, classifier, *SENTENCES]
    return [
        Step("export the fine-tuned decoupled model", "export", export),
        # TensorFlow prints lines about oneDNN and GPUs at every log level.
        Step(
            "run the export on raw sentences, without this package",
            "serve",
            serve,
            quiet=True,
        ),
    ]


def report(work_dir: str) -> None:
    """Prints the table and writes results.md, results.json and the plot."""
    seconds = seconds_of_steps(work_dir)
    results = {model: _results(work_dir, model, seconds) for model in MODELS}
    files.write_json(os.path.join(work_dir, "results.json"), results)
    rows = _table(results)
    columns = ["", *(results[model]["title"] for model in MODELS), "majority"]
    title = "Pre-trained on all languages, fine-tuned on English only"
    console.say("")
    console.table(title, columns, rows)
    text = tables.to_markdown(columns, rows, words=len(columns), gap="")
    files.write_text(os.path.join(work_dir, "results.md"), f"{text}\n")
    pictures = _plot(work_dir, results, os.path.join(work_dir, "results"))
    console.say(f"table: {work_dir}/results.md, plot: {', '.join(pictures)}")


def _results(work_dir, model, seconds):
    config = run_folder.read(os.path.join(work_dir, model)).model
    evaluation = files.read_json(os.path.join(work_dir, model, "eval.json"))
    results_path = os.path.join(work_dir, f"{model}_catalogs", "results.json")
    title = "coupled" if config.coupled else f"E_out {config.output_embedding_size}"
    return {
        "title": title,
        "pt_parameters": sum(pretraining_counts(config).values()),
        "ft_parameters": sum(finetuning_counts(config).values()),
        "masked_lm_accuracy": evaluation["all"]["masked_lm_accuracy"],
        "translation": _translation(work_dir, model),
        "languages": files.read_json(results_path)["test"],
        "pretraining_seconds": seconds[f"pretrain_{model}"],
        "finetuning_seconds": seconds[f"finetune_{model}"],
    }


def _translation(work_dir, model):
    """Accuracy by layer, the mean over languages and both directions, in percent."""
    path = os.path.join(work_dir, "neighbours", "neighbours.json")
    entries = files.read_json(path)["models"][MODELS.index(model)]["languages"]
    return [
        statistics.fmean(layer["mean"] for layer in layers)
        for layers in zip(*(entry["layers"] for entry in entries), strict=True)
    ]


def average(languages: dict[str, dict[str, float]], metric: str) -> float:
    """Mean over the languages that the task was not trained on."""
    values = [v[metric] for name, v in languages.items() if name != "en"]
    return sum(values) / len(values)


def _table(results):
    def row(title, text_of, majority=None):
        return [title, *(text_of(results[model]) for model in MODELS), majority]

    reference = results[MODELS[0]]["languages"]
    rows = [
        row("parameters in pre-training", lambda r: r["pt_parameters"]),
        row("parameters in fine-tuning", lambda r: r["ft_parameters"]),
        row("seconds of pre-training", lambda r: r["pretraining_seconds"]),
        row("seconds of fine-tuning", lambda r: r["finetuning_seconds"]),
        row("masked-LM accuracy", lambda r: _percent(100 * r["masked_lm_accuracy"])),
        *(
            row(
                f"translations found in layer {layer}",
                lambda r, layer=layer: _percent(r["translation"][layer]),
            )
            for layer in range(1, len(results[MODELS[0]]["translation"]))
        ),
        row(
            f"accuracy, mean of {len(reference) - 1} unseen languages",
            lambda r: _percent(average(r["languages"], "accuracy")),
            _percent(average(reference, "trivial_accuracy")),
        ),
    ]
    for language, values in reference.items():
        title = f"accuracy, {language}" + (" (trained on)" if language == "en" else "")
        rows.append(
            row(
                title,
                lambda r, name=language: _percent(r["languages"][name]["accuracy"]),
                _percent(values["trivial_accuracy"]),
            )
        )
    return rows


def _percent(value):
    return f"{value:.1f}%"


def _training_curve(folder):
    """Steps and accuracy in percent of a run, the means of its parts."""
    # Imported here: it loads TensorFlow, which the steps do in their own processes.
    from decoupled.runs.curve import read_accuracy

    points = np.array(sorted(read_accuracy(folder).items())).reshape(-1, 2)
    parts = [part for part in np.array_split(points, _PARTS) if len(part)]
    return np.array([part.mean(0) for part in parts]).reshape(-1, 2).T.tolist()


def _plot(work_dir, results, stem):
    titles = [result["title"] for result in results.values()]
    curves, language_scores = [], [result["languages"] for result in results.values()]
    for model, title in zip(results, titles, strict=True):
        steps, values = _training_curve(os.path.join(work_dir, model))
        curves.append(Line(title, steps, values, look={"marker": ""}))
        held_out_accuracy = [100 * results[model]["masked_lm_accuracy"]]
        curves.append(Line(title, [max(steps, default=0)], held_out_accuracy))
    layers = [result["translation"] for result in results.values()]
    languages = list(language_scores[0])
    places = list(range(len(languages)))
    scores = [
        Line(title, [of[name]["accuracy"] for name in languages], places)
        for title, of in zip(titles, language_scores, strict=True)
    ]
    majority = [language_scores[0][name]["trivial_accuracy"] for name in languages]
    look = {"marker": "|", "color": plots.BLACK, "markersize": 12}
    scores.append(Line("majority class", majority, places, look=look))
    panels = [
        Panel(
            curves,
            "step",
            "masked-LM accuracy, %",
            "Pre-training; points: held-out text",
            from_zero=True,
        ),
        Panel(
            [
                Line(title, list(range(len(shares))), shares)
                for title, shares in zip(titles, layers, strict=True)
            ],
            LAYER,
            "found by nearest neighbour, %",
            "Translations of held-out messages",
            from_zero=True,
        ),
        Panel(scores, "accuracy, %", title="Fine-tuned on English", rows=languages),
    ]
    return draw(Picture("", [panels]), stem)
