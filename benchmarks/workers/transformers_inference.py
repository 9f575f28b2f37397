"""Worker: calls of transformers' RemBertModel."""

import protocol
import synthetic
import torch
import transformers
from transformers_pretraining import encoder_inputs, facts, rembert_config


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds what that of `decoupled_inference` holds, and "compiled"."""
    torch.manual_seed(0)
    model = transformers.RemBertModel(rembert_config(case["model"])).eval()
    call = torch.compile(model) if case["compiled"] else model
    batch = synthetic.masked_lm_batch(case)
    inputs = encoder_inputs({k: torch.as_tensor(v) for k, v in batch.items()})

    @torch.inference_mode()
    def step():
        return call(**inputs)[0].flatten()[0].item()

    return step, facts(model)


if __name__ == "__main__":
    protocol.serve(build)
