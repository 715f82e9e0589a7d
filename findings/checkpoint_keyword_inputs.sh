#!/usr/bin/env bash
# A tensor passed to a checkpointed block by keyword never meets saved-tensor hooks, so save_on_cpu does not move it.
#
# Guess, written down before: save_on_cpu (or other saved_tensors_hooks) around a forward moves what checkpointed blocks
# keep, their inputs, however these are passed.
# Seen (torch 2.13.0, use_reentrant=False): of four blocks called as checkpoint(block, x) the hooks get four inputs, of
# checkpoint(block, x=x) none; without checkpointing they get twelve tensors of that size. In backward, when the blocks
# run again, the hooks get nothing in any of the three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/hooks.py" <<'PYTHON'
import torch
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 64)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


def packed(call):
    """Return how many activations the hooks got in forward, and in backward."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    x = torch.randn(32, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for block in torch.nn.ModuleList(Block() for _ in range(4)):
            x = call(block, x)
    in_forward = sizes.count(32 * 64)
    x.sum().backward()
    return in_forward, sizes.count(32 * 64) - in_forward


print("plain", *packed(lambda block, x: block(x)))
print("by position", *packed(lambda block, x: checkpoint(block, x, use_reentrant=False)))
print("by keyword", *packed(lambda block, x: checkpoint(block, x=x, use_reentrant=False)))
PYTHON
"$folder/venv/bin/python" "$folder/hooks.py" 2>/dev/null >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
plain 12 0
by position 4 0
by keyword 0 0
SEEN
