"""Masks of attention: sums of two, and copies in another precision, that every layer keeps."""

from collections.abc import Iterator

import numpy as np

from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.columns import BoolColumn, Int64Column, grouped, is_among, rows_of
from snapconv.hypotheses.changes import removed

# In torch/nn/functional.py; it makes a matrix of scores only to return them.
TORCHS_ATTENTION = "multi_head_attention_forward"
_FUSED_ATTENTION = "scaled_dot_product_attention"
# Sizes in a file may be rounded up to this.
_ROUNDING = 512


def is_made_by_attention(evidence: Evidence) -> tuple[Int64Column, Int64Column]:
    """Return the line of every allocation, and the rows that torch's function makes in forward."""
    frames = evidence.analysis.snapshot.stacks.frames
    frame = evidence.features.lines_of(evidence.stack_id)
    names = [*frames.names, ""]
    is_attention = np.array([name == TORCHS_ATTENTION for name in names])
    rows = rows_of(is_attention[frame] & evidence.features.in_forward)
    return np.append(frames.lines, -1)[frame].astype(np.int64), rows


def merged_masks(evidence: Evidence) -> Iterator[Detected]:
    """Find the sums of two masks that torch's attention makes, of one number for each score.

    torch/nn/functional.py, multi_head_attention_forward, torch 2.13: the function itself makes
    the sum first for backward, then queries and results. The fused kernel keeps the sum.
    """
    features = evidence.features
    lines, own_rows = is_made_by_attention(evidence)
    saved = own_rows[features.reaches_backward[own_rows]]
    if not len(saved):
        return
    line = lines[saved]
    sizes = features.sizes[saved]
    is_first = line == line.min()
    rows = saved[is_first & ~is_among(sizes, sizes[~is_first])]
    if is_first.all():
        return
    live_rows = evidence.live_of(rows)
    if evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE):
        yield evidence.finding_there(removed(evidence.analysis, rows), live_rows)


def converted_masks(evidence: Evidence) -> Iterator[Detected]:
    """Find the copies that fused attention makes of a boolean mask, one in each call.

    attention.cpp of torch 2.5 to 2.15, convert_boolean_attn_mask: the copy has the precision of the
    queries, and the kernel keeps it. All but the first are not needed where calls share a mask.
    """
    rows = _converted(evidence)
    later = [rows[:0]]
    for step_rows in grouped(rows, evidence.features.next_backward):
        for mask_rows in grouped(step_rows, evidence.sizes, min_rows=2):
            later.append(np.sort(mask_rows)[1:])
    rows = np.concatenate(later)
    live_rows = evidence.live_of(rows)
    if evidence.is_large(live_rows, LEAST_SHARE_OF_TRADE):
        change = removed(evidence.analysis, rows)
        yield evidence.finding_there(change, live_rows, number=len(live_rows) + 1)


def _converted(evidence: Evidence) -> Int64Column:
    """Return what has two or four bytes for each of the mask's inverse, which comes next.

    That has a byte for each value and is freed at once; both are of a call of attention.
    """
    features = evidence.features
    sizes = evidence.sizes
    is_attention: BoolColumn = evidence.analysis.is_of_operation(_FUSED_ATTENTION)
    frame = features.lines_of(evidence.stack_id)
    is_within = is_attention | is_among(frame, frame[is_attention])
    rows = rows_of(is_within & features.in_forward & features.is_freed_by_engine)
    rows = rows[rows + 1 < len(sizes)]
    is_next_within = is_within[rows + 1] & (
        evidence.end[rows + 1] == evidence.alloc[rows + 1] + 1
    )
    is_fitting = np.zeros(len(rows), bool)
    for n_bytes in (2, 4):
        difference = np.abs(n_bytes * sizes[rows + 1] - sizes[rows])
        is_fitting |= difference < n_bytes * _ROUNDING
    converted: Int64Column = rows[
        is_next_within & is_fitting & (sizes[rows] > 2 * _ROUNDING)
    ]
    return converted
