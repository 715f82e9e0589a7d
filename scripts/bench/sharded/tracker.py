"""What torch's own FSDPMemTracker says of the second step of the same model, as one line of JSON.

    python tracker.py SIZE MICRO_BATCH N_RANKS

It tracks tensors of the CPU in a fake process group: sizes are those of a card. In the first step of
an optimizer it counts the stand-ins that DTensor makes of whole parameters, so that a second tracker
begins with the second step.
"""

import json
import sys

import torch
import torch.distributed as dist
from llama import LENGTH, SHAPES, sharded, step
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore


def main() -> None:
    size, micro_batch, n_ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("fake", rank=0, world_size=n_ranks, store=FakeStore())
    shape = SHAPES[size]
    mesh = init_device_mesh("cpu", (n_ranks,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = sharded(shape, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            ids = torch.randint(0, shape.n_words, (micro_batch, LENGTH))
            tracker = FSDPMemTracker(model, optimizer)
            tracker.track_inputs((ids,))
            with tracker:
                step(model, optimizer, ids)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    print(json.dumps({getattr(kind, "value", kind): n_bytes for kind, n_bytes in peak.items()}))


if __name__ == "__main__":
    main()
