"""What torch itself says of the second step of the same model, as one line of JSON.

    python tracker.py SIZE MICRO_BATCH N_RANKS

Prints the bytes of FSDP2's own local shards, of their gradients, of AdamW's states for them and of
the model's buffers, and the peak in torch's FSDPMemTracker. Tensors are those of the CPU in a fake
process group: sizes are those of a card. In the first step of an optimizer the tracker counts the
stand-ins that DTensor makes of whole parameters, so that a second one begins with the second step.
"""

import json
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from llama import LENGTH, SHAPES
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers_llama import sharded, step


class Shards:
    """The bytes of the shards that a rank has when its optimizer steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.n_bytes: dict[str, int] = {}
        optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.n_bytes = {
            "weight": local_bytes(weights),
            "gradient": local_bytes(weight.grad for weight in weights),
            "optimizer_state": local_bytes(value for value in states if value.dim()),
        }


def local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.to_local().nbytes for tensor in tensors)


def main() -> None:
    size, micro_batch, n_ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("fake", rank=0, world_size=n_ranks, store=FakeStore())
    shape = SHAPES[size]
    mesh = init_device_mesh("cpu", (n_ranks,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = sharded(shape, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        shards = Shards(optimizer)
        for _ in range(2):
            ids = torch.randint(0, shape.n_words, (micro_batch, LENGTH))
            tracker = FSDPMemTracker(model, optimizer)
            tracker.track_inputs((ids,))
            with tracker:
                step(model, optimizer, ids)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    n_buffer_bytes = sum(buffer.nbytes for buffer in model.buffers())
    print(json.dumps({**shards.n_bytes, "buffers": n_buffer_bytes, "peak": peak["Total"]}))


if __name__ == "__main__":
    main()
