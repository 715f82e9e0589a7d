#!/usr/bin/env bash
# heavyball's optimizers drop the gradients in step: zero_grad finds none, and what reads them after step finds None.
#
# Guess, written down before: a step neither frees nor replaces gradients (LOMO, which has no step, apart), so that they
# take their memory until zero_grad or the next backward.
# Seen (heavyball 3.2.1, torch 2.13.0): after step of AdamW, SGD, Muon and SOAP every .grad is None; consume_grad=False
# keeps them. So in a recording the gradients are freed by frames of the optimizer; their norm cannot be logged after
# step; and zero_grad(set_to_none=False), which is to keep the buffers, keeps nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 opt-einsum==3.4.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps heavyball==3.2.1
cat >"$folder/gradients.py" <<'PYTHON'
import heavyball
import torch

# Without compilation, which changes nothing here, no C++ compiler is needed.
heavyball.utils.compile_mode = heavyball.utils.compile_mode_recommended_to_none = None
for name in ("AdamW", "SGD", "Muon", "SOAP"):
    for arguments in ({}, {"consume_grad": False}):
        weights = [torch.nn.Parameter(torch.randn(shape)) for shape in ((64, 32), (64,))]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        getattr(heavyball, name)(weights, lr=1e-3, **arguments).step()
        n_kept = sum(weight.grad is not None for weight in weights)
        print(name, arguments, "gradients kept:", n_kept)
        assert n_kept == (2 if arguments else 0)
PYTHON
"$folder/venv/bin/python" "$folder/gradients.py" 2>/dev/null
