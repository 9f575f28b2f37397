"""Runs an exported model on raw text: TensorFlow is all it needs.

A stand-alone script, to be read as an example and to be run in a separate process:

  python run_text_model.py EXPORT_DIR/text_classifier "A sentence." "Ein Satz."

It takes text_encoder, text_classifier and text_regressor, and of a model of pairs first
and second texts by turns. A SavedModel runs as a program: load it only from a source
that you trust.
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations

_OUTPUTS = ("label", "probabilities", "value", "pooled_output")


def main(folder: str, texts: list[str]) -> None:
    """Prints a line for each text, or for each pair of texts."""
    model = tf.saved_model.load(folder)
    _, inputs = model.signatures["serving_default"].structured_input_signature
    if "sentences" not in inputs or "words" in model.signatures:
        sys.exit(f"{folder}: takes no texts; decoupled predict takes its place")
    if "second_sentences" in inputs:
        outputs = model(texts[::2], second_sentences=texts[1::2])
        texts = texts[::2]
    else:
        outputs = model(texts)
    for index, text in enumerate(texts):
        row = {n: value[index] for n, value in outputs.items() if n in _OUTPUTS}
        print(describe(row, text))
    modules = {"decoupled", "mesh_tensorflow"} & set(sys.modules)
    print(f"modules of the training code that were loaded: {sorted(modules) or 'none'}")


def describe(row: dict[str, tf.Tensor], text: str) -> str:
    """What a model says about a text: a label, a number or a vector."""
    if "value" in row:
        return f"{float(row['value']):12.4g}  {text}"
    if "label" in row:
        label = row["label"].numpy().decode("utf-8")
        probability = float(tf.reduce_max(row["probabilities"]))
        return f"{label:>12}  {probability:.2f}  {text}"
    vector = row["pooled_output"]
    return f"{vector.shape[0]} numbers, norm {tf.norm(vector):.3f}  {text}"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
