"""What every training step leaves behind for good: a leak shows in every line, weights in the first."""

import sys
from itertools import pairwise

import snapconv

session = snapconv.load(sys.argv[1])
analysis = session.devices[0]
allocations = analysis.allocations
for number, (iteration, following) in enumerate(pairwise(analysis.iterations)):
    # Made in one iteration and still in use when the next one ends: gradients and inputs are freed by then.
    left = (analysis.iteration == number) & allocations.live_at(following.last_event)
    n_bytes = int(allocations.block_bytes[left].sum())
    print(f"iteration {number}: peak {iteration.peak_bytes:,} bytes, {n_bytes:,} bytes left")
