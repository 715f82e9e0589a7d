#!/usr/bin/env bash
# A resumed optimizer has its float32 states in the dtype of the weights: half the memory, and rounded.
#
# Guess, written down before: after a resume (load_state_dict of what state_dict returned) the states have the dtypes and
# the bytes that they had.
# Seen (torch 2.13.0, bfloat16 weights): torch.optim.Optimizer.load_state_dict casts every floating-point state except
# "step" to the dtype of its weight. MADGRAD's three states, which it makes in float32, are bfloat16 from then on: a
# resumed job needs half the memory for them, and computes otherwise. Ranger casts its averages back at the next step, so
# that they take their bytes again then, made by another line than before, with the rounded values.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps madgrad==1.3 pytorch-ranger==0.1.1
cat >"$folder/resume.py" <<'PYTHON'
import torch
from madgrad import MADGRAD
from pytorch_ranger import Ranger


def states(optimizer):
    """Return the dtypes of the states of the only weight."""
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return " ".join(f"{name}:{str(value.dtype)[6:]}" for name, value in state.items() if torch.is_tensor(value))


for optimizer_class in (MADGRAD, Ranger):
    weight = torch.nn.Parameter(torch.randn(64, 64).bfloat16())
    weight.grad = torch.randn_like(weight)
    optimizer = optimizer_class([weight], lr=1e-3)
    optimizer.step()
    print(optimizer_class.__name__, "before ", states(optimizer))
    resumed = optimizer_class([weight], lr=1e-3)
    resumed.load_state_dict(optimizer.state_dict())
    print(optimizer_class.__name__, "resumed", states(resumed))
    resumed.step()
    print(optimizer_class.__name__, "stepped", states(resumed))
PYTHON
"$folder/venv/bin/python" "$folder/resume.py" 2>/dev/null | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
MADGRAD before  grad_sum_sq:float32 s:float32 x0:float32
MADGRAD resumed grad_sum_sq:bfloat16 s:bfloat16 x0:bfloat16
MADGRAD stepped grad_sum_sq:bfloat16 s:bfloat16 x0:bfloat16
Ranger before  exp_avg:float32 exp_avg_sq:float32 slow_buffer:bfloat16
Ranger resumed exp_avg:bfloat16 exp_avg_sq:bfloat16 slow_buffer:bfloat16
Ranger stepped exp_avg:float32 exp_avg_sq:float32 slow_buffer:bfloat16
SEEN
