#!/usr/bin/env bash
# Under inference_mode autocast caches no cast: a weight is cast anew at every use, which no_grad spares.
#
# Guess, written down before: autocast's cache keeps the cast of a trained weight under inference_mode as it does under
# no_grad, so that a layer that is called three times is cast once.
# Seen (torch 2.13.0, CPU, bfloat16): under no_grad the weight is cast once and the input at each call, 4 casts; under
# inference_mode the weight is cast at each call too, 6 casts. So inference_mode holds no copies of the weights until the
# block ends, as cache_enabled=False does, and pays with a cast for every further use, such as for every token generated.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/casts.py" <<'PYTHON'
import torch
from torch.profiler import ProfilerActivity, profile


def casts(grad_mode):
    """Return how many tensors are cast in three calls of a layer without a bias."""
    layer = torch.nn.Linear(64, 64, bias=False)
    inputs = torch.randn(4, 64)
    with grad_mode(), torch.autocast("cpu", dtype=torch.bfloat16), profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(3):
            layer(inputs)
    return sum(event.count for event in seen.key_averages() if event.key == "aten::_to_copy")


for grad_mode, expected in ((torch.no_grad, 4), (torch.inference_mode, 6)):
    print(grad_mode.__name__, "casts:", casts(grad_mode))
    assert casts(grad_mode) == expected, grad_mode.__name__
PYTHON
"$folder/venv/bin/python" "$folder/casts.py"
