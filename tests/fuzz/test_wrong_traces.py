"""Traces that contradict themselves, replayed by the allocator model: an outcome, or an error of ours."""

import copy
import pickle

import pytest
from hypothesis import given

from snapconv.answers.what_if.setting_trials import Request
from snapconv.errors import SnapconvError
from snapconv.session import load
from tests.builders import write_anew
from tests.fuzz.corpus import OLD, RICH
from tests.fuzz.test_wrong_structure import EDITS, FUZZ

REQUESTS = (
    Request(("expandable_segments:True", "max_split_size_mb:32,roundup_power2_divisions:4")),
    Request(("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5",), capacity=1 << 26),
)


@pytest.mark.parametrize("base", [RICH, OLD], ids=["torch-2.12", "torch-2.0"])
@FUZZ
@given(edits=EDITS)
def test_wrong_values_are_replayed_or_refused_in_our_own_words(tmp_path, base, edits):
    raw = copy.deepcopy(base)
    for edit in edits:
        edit.apply(raw)
    path = tmp_path / "x.pickle"
    write_anew(path, pickle.dumps(raw, 4))
    try:
        session = load(path)
        for request in REQUESTS:
            session.what_if(request)
            session.what_if(request, batch_scale=3)
    except SnapconvError:
        pass
