"""Parts of the document of a reproduction that no sweep has.

Tables 8 and 9, Figures 1 and 2, and the spectrum of the embeddings.

Each is Markdown with a picture, which is drawn into the folder of the document's name;
there lies the page of the runs, too, which numbers link to.
"""

import os
import tempfile
from collections.abc import Callable

from decoupled.core import files, plots
from decoupled.core.markdown import GAP, head, line, linked
from decoupled.reports import published_analyses, reproduction_plots
from decoupled.reports.reproduction_results import Evidence
from decoupled.reports.sweep_results import spread

# Of Table 8, in its order; of Figures 1 and 2.
SIMILARITY_ROWS = ("coupled", "decoupled", "e_out_128", "e_out_768", "e_out_3072")
FIGURE_ROWS = ("e_out_128", "e_out_768", "e_out_3072")
_KINDS = ("input", "output")


def figure(path: str, name: str, plot: Callable, result: dict) -> str:
    """Draws it beside the document; a line of Markdown, "" without matplotlib."""
    folder = os.path.splitext(path)[0]
    with tempfile.TemporaryDirectory() as drawn:
        if not plots.draw(plot, result, os.path.join(drawn, name)):
            return ""
        picture = files.read_bytes(os.path.join(drawn, f"{name}.png"))
    with files.atomic_write(os.path.join(folder, f"{name}.png"), "wb") as handle:
        handle.write(picture)
    return f"![{name}]({os.path.basename(folder)}/{name}.png)\n"


def page(path: str) -> str:
    """Of the runs, seen from the document."""
    return f"{os.path.basename(os.path.splitext(path)[0])}/runs.md"


def number(values: dict[int, float], path: str, row: str) -> str:
    """Mean ± standard deviation over seeds, linked to the model's runs."""
    text = mean(values)
    return text if text == GAP else linked(text, page(path), row)


def similarity(evidence: Evidence, path: str) -> str:
    """Table 8, the published numbers below ours; "" where nothing was measured."""
    if not evidence.similarity:
        return ""
    sets = list(evidence.coverage)
    lines = [
        "## Table 8: word similarity and masked-LM accuracy",
        "",
        "Spearman x 100 of the dot product, input / output embedding.",
        "",
        *head(["model", *sets, "MLM acc"]),
    ]
    for row in SIMILARITY_ROWS:
        cells = [_similarity_cell(evidence, row, name, path) for name in sets]
        accuracy = number(evidence.masked_lm(row), path, row)
        paper = published_analyses.MASKED_LM[row]
        lines.append(line([row, *cells, f"{accuracy}<br>paper {paper:.1f}"]))
    covered = ", ".join(
        f"{name} {found / pairs:.0%} of {pairs:,}"
        for name, (found, pairs) in evidence.coverage.items()
    )
    lines += ["", f"Pairs that the vocabulary can write: {covered}.", ""]
    result = {
        "masked_lm": {row: evidence.masked_lm(row) for row in SIMILARITY_ROWS},
        **{
            kind: {row: evidence.mean_similarity(row, kind) for row in SIMILARITY_ROWS}
            for kind in _KINDS
        },
    }
    lines.append(figure(path, "similarity", reproduction_plots.plot_similarity, result))
    return "\n".join(lines)


def _similarity_cell(evidence, row, name, path):
    found = [evidence.similarity.get((name, kind), {}).get(row) for kind in _KINDS]
    ours = " / ".join(mean(values) for values in found if values)
    ours = linked(ours, page(path), row) if ours else GAP
    paper = published_analyses.SIMILARITY[row].get(name)
    if paper is None:
        return ours
    return f"{ours}<br>paper {' / '.join(f'{value:.1f}' for value in paper)}"


def dropped_layers(evidence: Evidence, path: str) -> str:
    """Figure 1 as tables, ours and the paper's, and a picture."""
    dropped = _chosen(evidence.dropped)
    if not dropped:
        return ""
    kept = sorted({layers for by_layers in dropped.values() for layers in by_layers})
    lines = [
        "## Figure 1: without the last layers",
        "",
        "Scores of models that were fine-tuned with their first layers alone.",
        "",
        *head(["layers kept", *map(str, kept)]),
    ]
    for row, by_layers in dropped.items():
        lines.append(
            line([row, *(number(by_layers.get(k, {}), path, row) for k in kept)])
        )
    lines += ["", "The paper, XNLI:", "", *_published_dropped(), ""]
    result = {"dropped": dropped}
    lines.append(figure(path, "figure_1", reproduction_plots.plot_dropped, result))
    return "\n".join(lines)


def _published_dropped():
    found = published_analyses.LAYER_DROP
    kept = sorted(found[FIGURE_ROWS[0]])
    yield from head(["layers kept", *map(str, kept)])
    for row in FIGURE_ROWS:
        yield line([row, *(f"{found[row][layers]:.1f}" for layers in kept)])


def translation(evidence: Evidence, path: str) -> str:
    """Figure 2 as tables, ours and the paper's, and a picture."""
    accuracies = _chosen(evidence.translation)
    if not accuracies:
        return ""
    layers = min(len(v) for seeds in accuracies.values() for v in seeds.values())
    languages = ", ".join(
        f"{name} ({pairs:,})" for name, pairs in evidence.languages.items()
    )
    lines = [
        "## Figure 2: translation by nearest neighbours",
        "",
        "Share of English sentences whose nearest neighbour is their translation, %; "
        f"mean over languages (pairs): {languages}.",
        "",
        *head(["layer", *map(str, range(layers))]),
    ]
    for row, seeds in accuracies.items():
        cells = [
            number({seed: values[layer] for seed, values in seeds.items()}, path, row)
            for layer in range(layers)
        ]
        lines.append(line([row, *cells]))
    lines += ["", "The paper, German:", "", *_published_translation(), ""]
    result = {"translation": accuracies}
    lines.append(figure(path, "figure_2", reproduction_plots.plot_translation, result))
    return "\n".join(lines)


def _published_translation():
    found = published_analyses.TRANSLATION
    places = range(1, len(found[FIGURE_ROWS[0]]) + 1)
    yield from head(["layer", *map(str, places)])
    for row in FIGURE_ROWS:
        yield line([row, *map(str, found[row])])


def probing(evidence: Evidence, path: str) -> str:
    """Table 9, the published numbers below ours; "" where nothing was measured."""
    if not evidence.probing:
        return ""
    tasks = list(evidence.probing)
    lines = [
        "## Table 9: edge probing",
        "",
        "F1 of a probe on a learned mix of all layers of the frozen encoder, %.",
        "",
        *head(["model", *tasks, "mean"]),
    ]
    for row in FIGURE_ROWS:
        found = [
            (evidence.probing[task].get(row, {}), published_analyses.PROBING[row][task])
            for task in tasks
        ]
        cells = [
            f"{number(values, path, row)}<br>paper {paper:.1f}"
            for values, paper in found
        ]
        cells.append(number(evidence.mean_probing(row), path, row))
        lines.append(line([row, *cells]))
    return "\n".join(lines) + "\n"


def ranks(evidence: Evidence, path: str) -> str:
    """Effective ranks of all models' embeddings; "" where nothing was measured."""
    if not evidence.ranks:
        return ""
    lines = [
        "## Spectrum of the embeddings",
        "",
        "Effective rank (exponential of the entropy of the singular values, mean row "
        "taken away) of the width E. Not in the paper.",
        "",
        "| model | input | of E_in | output | of E_out |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in evidence.rows.items():
        cells = []
        for kind in _KINDS:
            values = evidence.ranks.get(kind, {}).get(name, {})
            width = getattr(row.model, f"{kind}_embedding_size")
            cells += [number(values, path, name), str(width) if values else GAP]
        lines.append(line([name, *cells]))
    return "\n".join(lines) + "\n"


def _chosen(by_model):
    return {row: by_model[row] for row in FIGURE_ROWS if row in by_model}


def mean(values: dict[int, float]) -> str:
    """Mean ± standard deviation over seeds, without the latter for one seed."""
    found = spread(values)
    if found is None:
        return GAP
    text = f"{found.mean:.1f}"
    return text if found.count == 1 else f"{text} ± {found.deviation:.1f}"
