"""The lines that made the second file's peak higher or lower than the first's, largest change first."""

import sys

import snapconv

old, new = (snapconv.load(path) for path in sys.argv[1:])
for device in new.compared_with(old).devices:
    print(f"cuda:{device.new_device}: {device.allocated.more_bytes:+,} bytes at the peak")
    for row in device.lines[:5]:
        old_line, new_line = row.name
        line = new_line or old_line
        if line and row.more_bytes:
            print(f"{row.more_bytes:>+14,}  {line.place} in {line.function}")
