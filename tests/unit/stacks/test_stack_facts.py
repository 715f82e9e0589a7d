"""The lines at which the modules of a stack were called."""

import pytest

from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import find_module_calls

SITE = "/opt/venv/lib/python3.11/site-packages"
CALL = ("_call_impl", f"{SITE}/torch/nn/modules/module.py", 1751)
FORWARD = ("forward", f"{SITE}/torch/nn/modules/linear.py", 125)
MODEL, STEP = ("forward", "/w/proj/model.py", 35), ("step", "/w/proj/train.py", 53)


def label(*frames: tuple[str, str, int]) -> str:
    """What a stack shows, leaf first."""
    interner = StackInterner()
    interner.ids(
        [[{"name": name, "filename": file, "line": line} for name, file, line in frames]], str
    )
    stacks = interner.table()
    return find_module_calls(stacks, find_project(stacks, root="/w/proj"))[0]


def test_a_module_is_named_by_the_lines_that_call_it_and_those_around_it():
    assert label(FORWARD, CALL, MODEL, CALL, STEP) == "model.py:35 < train.py:53"


def test_the_lines_of_torch_itself_name_none():
    sequential = ("forward", f"{SITE}/torch/nn/modules/container.py", 250)
    assert label(FORWARD, CALL, sequential, CALL, STEP) == "train.py:53"


@pytest.mark.parametrize(
    "thread",
    [
        [(name, "/usr/lib/python3.11/threading.py", 982) for name in ("run", "_bootstrap")],
        [("run", "/usr/lib/python3.11/concurrent/futures/thread.py", 58)],
        [("run", "C:/Users/me/miniconda3/Lib/threading.py", 982)],
    ],
)
def test_the_lines_that_run_the_functions_of_threads_name_no_module(thread):
    worker = ("_worker", f"{SITE}/torch/nn/parallel/parallel_apply.py", 97)
    assert label(FORWARD, CALL, worker, *thread) == ""
    assert label(FORWARD, CALL, MODEL, CALL, worker, *thread) == "model.py:35"


def test_the_lines_of_other_libraries_name_modules():
    bert = ("forward", f"{SITE}/transformers/models/bert/modeling_bert.py", 286)
    assert (
        label(FORWARD, CALL, bert, CALL, STEP)
        == "transformers/models/bert/modeling_bert.py:286 < train.py:53"
    )
