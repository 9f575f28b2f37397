"""Worker: pairs of sentences through transformers' RemBertModel and NumPy's search.

As in most scripts: sentences sorted by length, each batch padded to its longest, the
mean over the tokens of a layer, and the products of all unit vectors at once.
"""

import numpy as np
import protocol
import synthetic
import torch
import transformers
from transformers_pretraining import facts, rembert_config


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds what that of `decoupled_retrieval` holds."""
    torch.manual_seed(0)
    model = transformers.RemBertModel(rembert_config(case["model"])).eval()
    batch_size = case["retrieval"]["batch_size"]
    first, second = synthetic.sentence_pairs(case)

    def step():
        vectors = encode(model, first + second, batch_size)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        left, right = np.split(vectors, 2)
        cosines = left @ right.T
        matches = cosines.argmax(axis=1), cosines.argmax(axis=0)
        forward_scores = cosines[np.arange(len(left)), matches[0]]
        backward_scores = cosines[matches[1], np.arange(len(right))]
        return float(forward_scores.mean() + backward_scores.mean())

    encode(model, first[:batch_size], batch_size)
    return step, facts(model)


@torch.inference_mode()
def encode(
    model: torch.nn.Module, texts: list[np.ndarray], batch_size: int
) -> np.ndarray:
    """float32 [texts, H]: means over the tokens in the last layer."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    vectors = np.zeros([len(texts), model.config.hidden_size], np.float32)
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        width = len(texts[places[-1]]) + 2
        ids = torch.full([len(places), width], synthetic.PAD_ID)
        mask = torch.zeros([len(places), width], dtype=torch.long)
        for row, place in enumerate(places):
            end = len(texts[place]) + 2
            ids[row, :end] = torch.as_tensor(
                [synthetic.CLS_ID, *texts[place], synthetic.SEP_ID]
            )
            mask[row, :end] = 1
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1)
        vectors[places] = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
    return vectors


if __name__ == "__main__":
    protocol.serve(build)
