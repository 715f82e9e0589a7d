#!/usr/bin/env bash
# GaLore's projector keeps all singular vectors of a float32 matrix, not just as many as its rank.
#
# Guess, as the method states it: a matrix of m x n (m <= n) takes a projector of m x rank, and two averages of rank x n.
# Seen (galore-torch 1.0, torch 2.13.0, 512 x 1024, rank 8, float32): the projector is a view of what the decomposition
# returned, and holds 1 MiB of storage (512 x 512) where its elements take 16 KiB; the averages have 64 KiB together. In
# bfloat16 it is cast, which copies its elements alone: 8 KiB. So with float32 weights the projectors of square matrices
# take as much as the weights, whatever the rank is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.24.0 \
    bitsandbytes==0.50.2 galore-torch==1.0
cat >"$folder/projector.py" <<'PYTHON'
import torch
from galore_torch import GaLoreAdamW

for dtype in (torch.float32, torch.bfloat16):
    weight = torch.nn.Parameter(torch.randn(512, 1024).to(dtype))
    projection = {"rank": 8, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    optimizer = GaLoreAdamW([{"params": [weight], **projection}], lr=1e-3)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    matrix = state["projector"].ortho_matrix
    averages = state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes
    print(dtype, tuple(matrix.shape), matrix.nbytes, matrix.untyped_storage().nbytes(), averages)
PYTHON
"$folder/venv/bin/python" "$folder/projector.py" 2>/dev/null | tee "$folder/seen"
diff - "$folder/seen" <<'SEEN'
torch.float32 (512, 8) 16384 1048576 65536
torch.bfloat16 (512, 8) 8192 8192 32768
SEEN
