#!/usr/bin/env bash
# A post release of torch_npu takes allocator options that its release refuses.
#
# Guess, written down before: the release number of torch_npu (2.6.0, 2.10.0) decides which options its allocator knows,
# and post releases repair faults only.
# Seen in the libraries of the wheels: 2.6.0 has no roundup_power2_divisions, 2.6.0.post5 has it; 2.10.0 reads
# PYTORCH_NPU_ALLOC_CONF alone, 2.10.0.post7 also has PYTORCH_ALLOC_CONF.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
has() { # VERSION TEXT: whether a library of the wheel has the text
    local wheel
    [ -d "$folder/$1" ] || {
        python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
            --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
            -d "$folder/$1" "torch_npu==$1"
        for wheel in "$folder/$1"/*.whl; do python3 -m zipfile -e "$wheel" "$folder/$1"; done
    }
    if grep -qa -r --include='*.so' -F "$2" "$folder/$1"; then echo "$1 $2 yes"; else echo "$1 $2 no"; fi
}
{
    has 2.6.0 roundup_power2_divisions
    has 2.6.0.post5 roundup_power2_divisions
    has 2.10.0 PYTORCH_ALLOC_CONF
    has 2.10.0.post7 PYTORCH_ALLOC_CONF
} >"$folder/seen"
cat "$folder/seen"
diff - "$folder/seen" <<'SEEN'
2.6.0 roundup_power2_divisions no
2.6.0.post5 roundup_power2_divisions yes
2.10.0 PYTORCH_ALLOC_CONF no
2.10.0.post7 PYTORCH_ALLOC_CONF yes
SEEN
