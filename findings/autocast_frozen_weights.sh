#!/usr/bin/env bash
# Frozen weights are cast anew at every use under autocast; its cache keeps casts of trained weights alone.
#
# Guess, written down before: autocast caches the cast of every float32 weight, so a frozen layer that is called three
# times is cast once, with gradients or without.
# Seen (torch 2.13.0, CPU, bfloat16): a layer that requires gradients is cast once, also under no_grad; a layer after
# requires_grad_(False) is cast three times. So freezing a model for inference takes autocast's cache of copies away,
# and pays with a cast at every call; cache_enabled=False does the same for weights that require gradients.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/casts.py" <<'PYTHON'
import torch
from torch.profiler import ProfilerActivity, profile


def casts(*, is_trained, records_gradients):
    """Return how often a weight of 64 x 64 is cast in three calls of its layer."""
    layer = torch.nn.Linear(64, 64, bias=False).requires_grad_(is_trained)
    inputs = torch.randn(4, 64)
    with torch.set_grad_enabled(records_gradients), torch.autocast("cpu", torch.bfloat16):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            for _ in range(3):
                layer(inputs)
    rows = recorded.key_averages(group_by_input_shape=True)
    return sum(row.count for row in rows if row.key == "aten::_to_copy" and row.input_shapes[:1] == [[64, 64]])


for is_trained in (True, False):
    for records_gradients in (True, False):
        number = casts(is_trained=is_trained, records_gradients=records_gradients)
        print(f"{'trained' if is_trained else 'frozen'} {'grad' if records_gradients else 'no_grad'} {number}")
PYTHON
"$folder/venv/bin/python" "$folder/casts.py" 2>/dev/null >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
trained grad 1
trained no_grad 1
frozen grad 3
frozen no_grad 3
SEEN
