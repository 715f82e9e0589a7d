"""The bytes of every category at the peak of each device, and what of them is only likely."""

import sys

import snapconv

session = snapconv.load(sys.argv[1])
for analysis in session.devices:
    print(f"cuda:{analysis.device.device}: {analysis.replay.allocated.peak:,} bytes at the peak")
    n_bytes = analysis.allocations.block_bytes
    is_live = analysis.allocations.live_at(analysis.peak_event)
    is_likely = analysis.classification.certainty == snapconv.Certainty.LIKELY
    for category in snapconv.Category:
        rows = is_live & (analysis.classification.category == category)
        if rows.any():
            likely = int(n_bytes[rows & is_likely].sum())
            print(f"{int(n_bytes[rows].sum()):>14,}  {category.label:<16} {likely:,} of it likely")
