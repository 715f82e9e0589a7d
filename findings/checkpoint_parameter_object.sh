#!/usr/bin/env bash
# Under any saved-tensor hooks a checkpointed function gets other objects the second time: parameters lose attributes.
#
# Guess, written down before: in backward a checkpointed function is called again with the very tensors that it was given,
# as hooks that return their argument change nothing.
# Seen (torch 2.13.0, use_reentrant=False): without hooks both calls get the Parameter; under hooks that do nothing the
# second gets a plain Tensor of the same memory, without what a library keeps on its parameters (DeepSpeed's ds_status,
# which TRL's loss in pieces reads there).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/objects.py" <<'PYTHON'
from contextlib import nullcontext

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


def kinds(context):
    """Return what a checkpointed function is given in forward, and in backward."""
    weight = torch.nn.Parameter(torch.ones(3, 3))
    weight.owner = "a library"
    seen = []

    def product(x, weight):
        seen.append(f"{type(weight).__name__} {hasattr(weight, 'owner')}")
        return (x @ weight).sin()

    with context:
        loss = checkpoint(product, torch.ones(2, 3), weight, use_reentrant=False).sum()
    loss.backward()
    return seen


print("no hooks:", *kinds(nullcontext()))
print("hooks:", *kinds(saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)))
PYTHON
"$folder/venv/bin/python" "$folder/objects.py" 2>/dev/null >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
no hooks: Parameter True Parameter True
hooks: Parameter True Tensor False
SEEN
