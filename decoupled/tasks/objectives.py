"""The objectives of pre-training, by the names that `pretrain.objective` gives them.

An objective is a `Task` that also makes its batches and sums up its predictions, as
`MaskedLM` does. It may have settings in `PretrainConfig`.
"""

from decoupled.configs import PretrainConfig
from decoupled.core.errors import UserError
from decoupled.tasks.mlm import MaskedLM

OBJECTIVES = {"mlm": MaskedLM}


def make_objective(config: PretrainConfig, pad_id: int = 0) -> MaskedLM:
    """The objective of a run; `pad_id`: the padding piece of its vocabulary."""
    if config.objective not in OBJECTIVES:
        raise UserError(
            f"pretrain.objective: {config.objective!r} is none of "
            f"{', '.join(OBJECTIVES)}"
        )
    return OBJECTIVES[config.objective].from_config(config, pad_id)
