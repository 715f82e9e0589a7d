#!/usr/bin/env bash
# An empty PYTORCH_CUDA_ALLOC_CONF switches PYTORCH_ALLOC_CONF off: the first variable that exists counts, not one with text.
#
# Guess, written down before: a variable that is empty, as `docker run -e PYTORCH_CUDA_ALLOC_CONF=` or an unset shell
# variable in a job's file leaves it, is as if it were not set, so that PYTORCH_ALLOC_CONF is read.
# Seen (torch 2.15.0, the registry's build for Linux, which has CUDA; no GPU is needed): expandable_segments:True in the
# general variable holds alone, and does nothing beside an empty variable of CUDA. No warning is printed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.15.0 numpy==2.4.6
cat >"$folder/expandable.py" <<'PYTHON'
import torch

print(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
PYTHON
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
export PYTORCH_ALLOC_CONF=expandable_segments:True
alone=$("$folder/venv/bin/python" "$folder/expandable.py")
beside=$(PYTORCH_CUDA_ALLOC_CONF='' "$folder/venv/bin/python" "$folder/expandable.py")
echo "alone $alone, beside an empty one $beside"
[ "$alone $beside" = "True False" ]
