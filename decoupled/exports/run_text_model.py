"""Runs a text_classifier or text_encoder on sentences: TensorFlow is all it needs.

A stand-alone script, to be read as an example and to be run in a process of its own:

  python run_text_model.py EXPORT_DIR/text_classifier "A sentence." "Ein Satz."
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations


def main(folder: str, sentences: list[str]) -> None:
    """Prints the label and its probability, or the size of the vector, of each."""
    model = tf.saved_model.load(folder)
    outputs = model(sentences)
    for index, sentence in enumerate(sentences):
        if "label" in outputs:
            label = outputs["label"][index].numpy().decode("utf-8")
            probability = float(tf.reduce_max(outputs["probabilities"][index]))
            print(f"{label:>12}  {probability:.2f}  {sentence}")
        else:
            vector = outputs["pooled_output"][index]
            print(f"{vector.shape[0]} numbers, norm {tf.norm(vector):.3f}  {sentence}")
    foreign = {"decoupled", "mesh_tensorflow"} & set(sys.modules)
    print(f"modules of the training code that were loaded: {sorted(foreign) or 'none'}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
