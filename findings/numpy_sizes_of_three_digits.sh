#!/usr/bin/env bash
# NumPy's MemoryError writes a size of three digits with a point and nothing after it: "512. PiB".
#
# Guess, as our pattern for sizes had it before: a size stands as "512 PiB" or "512.00 PiB", as torch and the kernel
# write theirs, so that digits follow a point.
# Seen (NumPy 1.26.4 and 2.4.6): three significant digits, and the point stays: "4.00 PiB", "64.0 PiB", "512. PiB". A
# pattern that expects digits after the point reads no size, or takes the point for the end of the sentence; a GPU host
# with hundreds of GiB is where people meet it ("Unable to allocate 315. GiB for an array …").
# Every request here is larger than what a process can address, so it is refused on any 64-bit machine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/sizes.py" <<'PYTHON'
import re

import numpy as np

for power, expected in ((52, "4.00 PiB"), (56, "64.0 PiB"), (59, "512. PiB")):
    try:
        np.empty(1 << power, np.int8)
    except MemoryError as error:
        size = re.search(r"allocate (\S+ \S+) for", str(error))[1]
        print(np.__version__, str(error))
        assert size == expected, size
    else:
        raise SystemExit("the request was granted")
PYTHON
for version in 1.26.4 2.4.6; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install -q --disable-pip-version-check "numpy==$version"
    "$folder/$version/bin/python" "$folder/sizes.py"
done
