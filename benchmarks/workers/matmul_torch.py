"""Worker: one matrix product of [size, size] by PyTorch."""

import protocol
import torch


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "size" and "dtype"."""
    torch.manual_seed(0)
    dtype = getattr(torch, case["dtype"])
    left, right = (torch.randn(case["size"], case["size"]).to(dtype) for _ in range(2))

    @torch.no_grad()
    def step():
        return float(torch.mm(left, right)[0, 0])

    return step, {"versions": {"torch": torch.__version__}}


if __name__ == "__main__":
    protocol.serve(build)
