"""The lines that hold most at the peak, as a polars frame."""

import sys

import polars
import snapconv

session = snapconv.load(sys.argv[1])
lines = (
    polars.DataFrame(session.columns())
    .filter(polars.col("is_live_at_peak"), polars.col("line") >= 0)
    .group_by("file", "line", "function")
    .agg(polars.sum("block_bytes"), polars.len())
    .sort("block_bytes", "line", descending=True)
)
for file, line, function, n_bytes, n_blocks in lines.head(5).iter_rows():
    print(f"{n_bytes:>14,}  {n_blocks:>4}  {file}:{line} {function}")
