"""What is live at the peak of each device, by category and operation."""

import sys
from collections import Counter

import snapconv

session = snapconv.load(sys.argv[1])
for analysis in session.devices:
    allocations = analysis.allocations
    print(f"cuda:{analysis.device.device}: {analysis.replay.allocated.peak:,} bytes at the peak")
    held: Counter[tuple[str, str]] = Counter()
    for row in allocations.live_at(analysis.peak_event).nonzero()[0].tolist():
        category = snapconv.Category(analysis.classification.category[row]).label
        operation = analysis.operations[analysis.operation_id[row]]
        held[category, operation] += int(allocations.block_bytes[row])
    for (category, operation), n_bytes in held.most_common(8):
        print(f"{n_bytes:>14,}  {category:<16} {operation}")
