"""Which release wrote a file, inferred from the keys that each release added."""

import pytest

from snapconv.snapshot.file_traits import BLOCK_ADDRESSES, PLOT, Era, infer_era

# What a whole file has in each range of releases that traits distinguish, oldest first: one more
# trait each.
ADDED: dict[tuple[str, str | None], str] = {
    ("2.0", "2.0"): "",
    ("2.1", "2.1"): BLOCK_ADDRESSES,
    ("2.2", "2.2"): "time_us",
    ("2.3", "2.4"): "allocator_settings",
    ("2.5", "2.7"): "external_annotations",
    ("2.8", "2.8"): "compile_context_id",
    ("2.9", "2.9"): "graph_capture_record_stream_reuse",
    ("2.10", "2.11"): "user_metadata_id",
    ("2.12", "2.12"): "pool_id",
    ("2.13", "2.13"): "max_round_threshold",
    ("2.14", None): "host_segments",
    ("2.15", None): "internal_metadata_id",
}
PLACES = {"file", "events", "blocks"}
OF_EVENTS = {"time_us", "compile_context_id", "user_metadata_id", "pool_id", "internal_metadata_id"}


def traits(release: str) -> set[str]:
    """What a file of this release (the first of its range) has."""
    found: set[str] = set()
    for (first, _), added in ADDED.items():
        found.add(added)
        if first == release:
            return found
    raise KeyError(release)


def places(found: set[str], *others: str) -> set[str]:
    return {*PLACES, *others, *(["settings"] if "allocator_settings" in found else [])}


@pytest.mark.parametrize(("first", "last"), ADDED)
def test_a_file_with_everything_shows_its_release(first, last):
    found = traits(first)
    assert infer_era(found, places(found)) == Era(first, last)


@pytest.mark.parametrize(
    ("release", "era"),
    [
        ("2.0", ("2.0", "2.0")),
        ("2.1", ("2.1", "2.2")),
        ("2.2", ("2.1", "2.2")),
        ("2.3", ("2.3", "2.4")),
        ("2.5", ("2.5", "2.8")),
        ("2.8", ("2.5", "2.8")),
        ("2.9", ("2.9", "2.12")),
        ("2.10", ("2.9", "2.12")),
        ("2.12", ("2.9", "2.12")),
        ("2.13", ("2.13", "2.13")),
        ("2.14", ("2.14", None)),
    ],
)
def test_without_events_only_settings_annotations_and_blocks_show(release, era):
    found = traits(release) - OF_EVENTS
    assert infer_era(found, places(found) - {"events"}) == Era(*era)


@pytest.mark.parametrize(
    ("found", "era"), [({BLOCK_ADDRESSES}, ("2.1", None)), (set(), ("2.0", "2.0"))]
)
def test_a_bare_list_of_segments_rules_no_later_release_out(found, era):
    """memory_snapshot() returns one in every release: it has no place for settings or annotations."""
    assert infer_era(found, {"blocks"}) == Era(*era)


def test_a_file_with_nothing_in_it_could_be_any_release():
    assert infer_era(set(), set()) == Era("2.0", None)


def test_a_newer_key_outweighs_an_older_one_that_is_missing():
    """Synthetic files leave keys out; skip_actions and other wrappers too."""
    found = traits("2.12") - {"allocator_settings", "graph_capture_record_stream_reuse"}
    assert infer_era(found, PLACES) == Era("2.12", "2.13")


@pytest.mark.parametrize(
    ("backend", "more", "era"),
    [
        ("npu", set(), Era("2.3", None, "npu")),
        ("xpu", set(), Era("2.11", None, "xpu")),
        ("cuda", {PLOT}, Era("2.3", None)),
    ],
)
def test_a_key_that_its_writer_never_writes_rules_nothing_out(backend, more, era):
    found = traits("2.3") | more
    assert infer_era(found, places(found), backend) == era


@pytest.mark.parametrize(
    ("era", "text"),
    [
        (Era("2.13", None), "torch 2.13 or newer"),
        (Era("2.2", "2.2"), "torch 2.2"),
        (Era("2.5", "2.7"), "torch 2.5 to 2.7"),
        (Era("2.5", "2.7", "npu"), "torch 2.5 to 2.7 (npu)"),
    ],
)
def test_an_era_reads_as_a_person_would_write_it(era, text):
    assert str(era) == text
