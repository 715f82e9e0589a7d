"""Files whose parts are compared with the whole, and a small job whose events are counted by hand."""

from tests.builders import ADDR, MIB, TraceBuilder, frame

CURVES = ("requested", "allocated", "active", "reserved")
FILES = (
    *("training_step", "growing", "expandable_segments", "several_streams", "private_pools"),
    *("late_start", "pending_before_start", "reordered_ring", "torch_2_0", "torch_2_13"),
    *("torch_2_15", "torch_npu_expandable", "torch_xpu"),
)


def counted_job() -> TraceBuilder:
    """Events 0 to 8: a segment, three blocks, the second freed, a pending free, and one more block."""
    trace = TraceBuilder().segment(20 * MIB)
    for n_mib in (1, 2, 4):
        trace.alloc(n_mib * MIB, frames=[frame(f"make_{n_mib}", line=n_mib)])
    trace.free(ADDR + MIB).free(completed=False)
    return trace.alloc(512).segment()
