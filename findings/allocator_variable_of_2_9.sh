#!/usr/bin/env bash
# torch 2.9 does not read PYTORCH_ALLOC_CONF for CUDA, although it is documented there and the libraries have the name.
#
# Guess, as a comment of ours had it from the strings in the wheels: from 2.9 on, the general variable counts and the one
# of CUDA is its old name.
# Seen (torch 2.9.1 and 2.10.0, the registry's builds for Linux, which have CUDA; no GPU is needed): 2.9.1 ignores the
# general variable without a word, even an option that does not exist; 2.10.0 reads it, below the one of CUDA.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/settings.py" <<'PYTHON'
import torch

try:
    print(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"])
except ValueError as error:
    print(str(error).splitlines()[0])
PYTHON
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
for version in 2.9.1 2.10.0; do
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "torch==$version" numpy==2.4.6
    for conf in expandable_segments:True no_such_option:1; do
        echo "$version $conf: $(PYTORCH_ALLOC_CONF=$conf "$folder/venv/bin/python" "$folder/settings.py" 2>/dev/null)"
    done
    rm -rf "$folder/venv"
done >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
2.9.1 expandable_segments:True: False
2.9.1 no_such_option:1: False
2.10.0 expandable_segments:True: True
2.10.0 no_such_option:1: Unrecognized key 'no_such_option' in Accelerator allocator config.
SEEN
