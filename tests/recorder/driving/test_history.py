"""Against a stand-in for torch: each of its forms, on any machine."""

import sys
from types import SimpleNamespace

import pytest

from snapconv.recorder import memory_history
from snapconv.recorder.options import RecordingOptions

pytestmark = pytest.mark.smoke("recording")


@pytest.fixture
def torch(monkeypatch):
    """A torch whose history function can be chosen; ``calls`` are the ones made."""
    calls = []
    stand_in = type(sys)("torch")
    stand_in.__version__ = "2.x"
    stand_in.calls = calls
    stand_in.cuda = SimpleNamespace(memory=SimpleNamespace())
    stand_in._C = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return stand_in


def start(torch, function):
    torch.cuda.memory._record_memory_history = function
    memory_history.start(RecordingOptions(stacks="python", max_entries=7))
    return torch.calls


ASKED = {"context": "all", "stacks": "python", "max_entries": 7}


def test_the_oldest_form_gets_its_four_arguments(torch):
    def form(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
        asked = {"context": context, "stacks": stacks, "max_entries": max_entries}
        torch.calls.append((enabled, asked, device))

    assert start(torch, form) == [("all", ASKED, None)]


def test_a_newer_form_drops_what_was_recorded_before(torch):
    def form(
        enabled="all",
        context="all",
        stacks="all",
        max_entries=sys.maxsize,
        device=None,
        clear_history=False,
        compile_context=False,
        global_record_annotations=False,
        skip_actions=None,
    ):
        torch.calls.append((enabled, clear_history, skip_actions))

    assert start(torch, form) == [("all", True, None)]


def test_an_observer_hears_nothing_once_it_is_taken_off(torch):
    attached, heard = [], []
    torch._C._cuda_attach_out_of_memory_observer = attached.append
    with memory_history.out_of_memory_observer(lambda *what: heard.append(what)):
        attached[0](0, 1, 2, 3)
    attached[0](0, 4, 5, 6)
    assert heard == [(0, 1, 2, 3)]
