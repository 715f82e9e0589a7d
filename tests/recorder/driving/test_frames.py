import traceback

import pytest

from snapconv.guest import own_frames
from snapconv.guest.guard import Guard

OURS = own_frames.__file__


def frame(filename, name="f"):
    return {"filename": filename, "line": 1, "name": name}


def snapshot(*stacks):
    return {
        "segments": [{"frames": stack, "blocks": [{"frames": stack}, {}]} for stack in stacks],
        "device_traces": [[{"action": "alloc", "frames": stack} for stack in stacks], []],
        "host_segments": [{"frames": stack, "blocks": [{"frames": stack}]} for stack in stacks],
        "host_traces": [{"action": "alloc", "frames": stack} for stack in stacks]
        + [{"action": "segment_free"}],
    }


def test_a_stack_ends_where_user_code_was_called():
    users = [frame("model.py"), frame("train.py", "<module>")]
    stack = [*users, frame(OURS, "call_user"), frame("typer/main.py")]
    raw = snapshot(stack)
    own_frames.clean_snapshot(raw)
    assert raw == snapshot(users)


def test_our_frames_between_the_users_are_left_out():
    hook = frame(OURS.replace("frames.py", "timing.py"), "__torch_function__")
    raw = snapshot([frame("at::add", "at::add"), hook, frame("train.py")])
    own_frames.clean_snapshot(raw)
    assert raw == snapshot([frame("at::add", "at::add"), frame("train.py")])


def test_a_function_of_the_users_may_be_named_as_ours():
    stack = [frame("mine.py", "call_user"), frame("train.py")]
    raw = snapshot(stack)
    own_frames.clean_snapshot(raw)
    assert raw == snapshot(stack)


def test_a_stack_shared_by_events_is_shared_after_cleaning():
    stack = [frame("train.py"), frame(OURS, "call_user")]
    raw = snapshot(stack)
    own_frames.clean_snapshot(raw)
    assert raw["segments"][0]["frames"] is raw["device_traces"][0][0]["frames"]


def names_in_traceback(error):
    return [entry.name for entry in traceback.extract_tb(error.__traceback__)]


def users_function():
    own_frames.call_user(inner)


def inner():
    raise ValueError("theirs")


def test_a_traceback_shows_the_users_frames_only():
    with pytest.raises(ValueError) as caught:
        own_frames.call_user(users_function)
    assert "call_user" in names_in_traceback(caught.value)
    own_frames.clean_traceback(caught.value)
    assert names_in_traceback(caught.value)[1:] == ["users_function", "inner"]


def test_the_tracebacks_of_causes_and_contexts_are_cleaned_too():
    def wrap():
        try:
            own_frames.call_user(inner)
        except ValueError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(RuntimeError) as caught:
        own_frames.call_user(wrap)
    own_frames.clean_traceback(caught.value)
    assert names_in_traceback(caught.value.__cause__) == ["wrap", "inner"]


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError(), ValueError()
    first.__context__, second.__context__ = second, first
    assert own_frames.chain(first) == [first, second]


def test_the_members_of_a_group_are_in_the_chain_and_what_only_looks_like_some_is_not():
    group, other = ValueError(), ValueError()
    group.exceptions = member, no_exception = (KeyError(), ValueError)
    other.exceptions = 7
    assert own_frames.chain(group) == [group, member]
    assert own_frames.chain(other) == [other]
    assert no_exception is ValueError


def test_ours_is_the_package_and_not_what_lies_beside_it():
    assert own_frames.is_ours(Guard.run.__code__.co_filename)
    assert not own_frames.is_ours(__file__)
    assert not own_frames.is_ours(OURS.replace("/snapconv/guest/", "/snapconv_plugins/"))
