"""The lines that hold most at the peak, as a pandas frame."""

import sys

import pandas
import snapconv

session = snapconv.load(sys.argv[1])
allocations = pandas.DataFrame(session.columns())
at_peak = allocations[allocations.is_live_at_peak & (allocations.line >= 0)]
lines = at_peak.groupby(["file", "line", "function"]).block_bytes.agg(["sum", "count"])
print(lines.sort_values("sum", ascending=False).head(5).reset_index().to_string(index=False))
