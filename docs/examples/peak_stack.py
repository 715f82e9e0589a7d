"""The whole stack of the largest allocation that is live at the peak, innermost frame first."""

import sys

import snapconv

session = snapconv.load(sys.argv[1])
analysis = session.devices[0]
allocations = analysis.allocations
rows = allocations.live_at(analysis.peak_event).nonzero()[0]
largest = rows[allocations.block_bytes[rows].argmax()]
print(
    f"{allocations.block_bytes[largest]:,} bytes for "
    f"{analysis.operations[analysis.operation_id[largest]]}"
)
frames = session.snapshot.stacks.frames
for frame in session.snapshot.stacks.frames_of(allocations.stack_id[largest]):
    if frames.filenames[frame].endswith(".py"):  # else it is code in C++
        print(f"  {frames.filenames[frame]}:{frames.lines[frame]} in {frames.names[frame]}")
