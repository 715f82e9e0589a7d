"""Questions to ``snapconv explain``: what may be text, and which allocations are meant."""

import pickle

import pytest

import snapconv
from snapconv.answers.selection import Kind, Question, parse_question
from snapconv.errors import InputError
from tests.builders import ADDR, MIB, TraceBuilder


@pytest.fixture
def load(tmp_path):
    """Load what a builder recorded."""

    def load(made):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(made.snapshot()))
        return snapconv.load(path)

    return load


def alloc_events(explanation):
    """The allocations of an answer, by the events that allocated them; None: before the trace."""
    return [
        explained.lifetime.allocated and explained.lifetime.allocated.event
        for explained in explanation.allocations
    ]


# --- what may be text


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("#12", Question("#12", Kind.EVENT, 12)),
        ("0x7f00", Question("0x7f00", Kind.ADDRESS, 0x7F00)),
        ("0X7F00", Question("0X7F00", Kind.ADDRESS, 0x7F00)),
        ("0xffffffffffffff00", Question("0xffffffffffffff00", Kind.ADDRESS, -256)),
        ("12", Question("12", Kind.EITHER, 12)),
        ("-256", Question("-256", Kind.EITHER, -256)),
        ("b7f00_2", Question("b7f00_2", Kind.ADDRESS, 0x7F00, 2)),
        ("b'7f00_0", Question("b'7f00_0", Kind.ADDRESS, 0x7F00, 0)),
        (" #12\n", Question(" #12\n", Kind.EVENT, 12)),
    ],
)
def test_an_address_or_an_event_may_be_requested(text, question):
    assert parse_question(text) == question


@pytest.mark.parametrize(
    "text", ["", "#", "#-1", "0x", "7f00", "0x1_0", "1.5", "#12 #13", "0x" + "f" * 17, "\u0661"]
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"0x7f3c40001000 or an event such as #1234"):
        parse_question(text)


def test_a_number_of_more_than_64_bits_is_no_address():
    with pytest.raises(ValueError, match="more than 64 bits"):
        parse_question("-9999999999999999999")


# --- who is meant


@pytest.fixture
def reused(load):
    """Events: 0 segment; 1-3 first allocation at ADDR, 4 KiB; 4-6 second, 1 KiB; 7 third, 2 KiB, kept."""
    builder = TraceBuilder().segment().alloc(4096).free().alloc(1024).free().alloc(2048)
    return load(builder)


@pytest.mark.parametrize("text", ["#4", "4", "#5", "#6"])
def test_every_event_of_a_lifetime_leads_to_it(reused, text):
    assert alloc_events(reused.explain(text)) == [4]


def test_of_several_lives_the_one_at_the_peak_goes_first_then_the_newest(reused):
    explanation = reused.explain(hex(ADDR))
    assert alloc_events(explanation) == [1, 7, 4]
    assert [explained.lifetime.is_live_at_peak for explained in explanation.allocations] == [
        True,
        False,
        False,
    ]


def test_what_begins_at_the_address_goes_before_what_has_it_inside(load):
    builder = TraceBuilder().segment().alloc(4096).free().alloc(1024).alloc(512)
    assert alloc_events(load(builder).explain(hex(ADDR + 1024))) == [5, 1]


@pytest.mark.parametrize(("offset", "events"), [(1023, [1, 7, 4]), (1024, [1, 7]), (2048, [1]), (4095, [1])])
def test_an_address_inside_a_block_leads_to_it(reused, offset, events):
    assert alloc_events(reused.explain(hex(ADDR + offset))) == events


@pytest.mark.parametrize(("text", "event"), [("_0", 1), ("_1", 4), ("_2", 7)])
def test_a_label_of_the_viewer_leads_to_one_allocation(reused, text, event):
    assert alloc_events(reused.explain(f"b{ADDR:x}{text}")) == [event]


def test_a_bare_number_beyond_the_trace_is_an_address(reused):
    assert alloc_events(reused.explain(str(ADDR))) == [1, 7, 4]


def test_an_address_beyond_2_to_the_63_is_found_however_it_is_written(load):
    high = (1 << 64) - 4 * MIB
    session = load(TraceBuilder().segment(address=high).alloc(512))
    for text in (hex(high), str(high - (1 << 64)), f"b{high:x}_0"):
        (explained,) = session.explain(text).allocations
        assert explained.address == "0xffffffffffc00000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#0", "event #0 of cuda:0 is segment_alloc of 2.00 MiB, which is about no allocation"),
        ("#8", "cuda:0 has no event #8; it has 8 events, the last is #7"),
        (f"b{ADDR:x}_3", "3 allocations began there"),
        (hex(ADDR + 4096), f"it is in the segment at {ADDR:#x}; the next one below is at {ADDR:#x}"),
        ("0x10", f"no allocation of cuda:0 has 0x10; the next one above is at {ADDR:#x}"),
    ],
)
def test_where_nothing_is_meant_the_error_shows_what_there_is(reused, text, said):
    with pytest.raises(InputError) as wrong:
        reused.explain(text)
    assert str(wrong.value).endswith(said)
    assert "run.pickle: " in str(wrong.value)


def test_a_device_without_allocations_is_reported(load):
    with pytest.raises(InputError, match="it has none at all"):
        load(TraceBuilder()).explain("0x10")


def test_every_device_is_looked_at_by_default(tmp_path):
    first, second = TraceBuilder().segment().alloc(512), TraceBuilder(device=2).segment().alloc(1024)
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(first.snapshot(second)))
    session = snapconv.load(path)
    assert [explained.device for explained in session.explain("#1").allocations] == [0, 2]
    assert [explained.device for explained in session.explain("#1", device=2).allocations] == [2]
    with pytest.raises(InputError, match="nothing of device 1; it has: 0, 2"):
        session.explain("#1", device=1)


def test_of_very_many_allocations_the_newest_are_explained_and_all_are_counted(load):
    builder = TraceBuilder().segment()
    for _ in range(150):
        builder.alloc(512).free()
    explanation = load(builder).explain(hex(ADDR))
    assert (explanation.n_allocations, len(explanation.allocations)) == (150, 100)
    assert alloc_events(explanation)[:3] == [1, 448, 445]
    assert list(explanation.lines())[-1] == "  and 129 earlier ones"
