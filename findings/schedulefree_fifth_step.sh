#!/usr/bin/env bash
# RAdamScheduleFree needs a copy of all weights from its fifth step on, but not before: a short run fits all the same.
#
# Guess, written down before: beyond new states, every later step needs as much memory as the first.
# Seen (schedulefree 1.4.1, torch 2.13.0, foreach, as is the default on CUDA): bytes that a step needs beyond what stays,
# in multiples of all weights: 0 in steps 1 to 4, 1.00 from step 5 on, when the variance can be corrected. So a trial of
# fewer than five iterations finds a lower peak than the training has, where the step is the peak. torch.optim.RAdam needs
# 1.00 from the first step on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 typing_extensions==4.16.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps schedulefree==1.4.1
cat >"$folder/steps.py" <<'PYTHON'
import torch
from schedulefree import RAdamScheduleFree
from torch.profiler import ProfilerActivity, profile


def most_bytes(optimizer):
    """Return the bytes that a step needs at once, beyond what stands after it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        optimizer.step()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    current = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most - current


for optimizer_class in (RAdamScheduleFree, torch.optim.RAdam):
    weights = [torch.nn.Parameter(torch.randn(512, 512)) for _ in range(4)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = optimizer_class(weights, foreach=True)
    if hasattr(optimizer, "train"):
        optimizer.train()
    n_bytes = sum(weight.nbytes for weight in weights)
    print(optimizer_class.__name__, " ".join(f"{most_bytes(optimizer) / n_bytes:.2f}" for _ in range(7)))
PYTHON
"$folder/venv/bin/python" "$folder/steps.py" 2>/dev/null | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
RAdamScheduleFree 0.00 0.00 0.00 0.00 1.00 1.00 1.00
RAdam 1.00 1.00 1.00 1.00 1.00 1.00 1.00
SEEN
