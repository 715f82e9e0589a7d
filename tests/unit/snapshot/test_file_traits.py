"""Which release wrote a file, inferred from the keys that each release added."""

from typing import Any

import pytest

from snapconv.snapshot.file_traits import Era, Traits, infer_era

# What a whole file has in each range of releases that keys distinguish, oldest first: one more key each.
ADDED: dict[tuple[str, str | None], dict[str, Any]] = {
    ("2.0", "2.0"): {},
    ("2.1", "2.1"): {"block_addresses": True},
    ("2.2", "2.2"): {"timed_events": 5},
    ("2.3", "2.4"): {"has_settings": True, "settings_keys": frozenset({"max_split_size"})},
    ("2.5", "2.7"): {"has_annotations": True},
    ("2.8", "2.8"): {"has_compile_context": True},
    ("2.9", "2.9"): {"settings_keys": frozenset({"graph_capture_record_stream_reuse"})},
    ("2.10", "2.11"): {"has_user_metadata": True},
    ("2.12", "2.12"): {"has_event_pools": True},
    ("2.13", "2.13"): {
        "settings_keys": frozenset({"graph_capture_record_stream_reuse", "max_round_threshold"})
    },
    ("2.14", None): {"has_host_memory": True},
    ("2.15", None): {"has_internal_metadata": True},
}
NOTHING = Traits(
    block_addresses=False,
    has_blocks=True,
    timed_events=0,
    settings_keys=frozenset(),
    has_settings=False,
    has_annotations=False,
    is_whole=True,
    has_compile_context=False,
    has_user_metadata=False,
    has_event_pools=False,
    has_host_memory=False,
    has_internal_metadata=False,
    n_events=5,
    is_plot=False,
    backend="cuda",
)
NO_EVENTS = {
    "n_events": 0,
    "timed_events": 0,
    "has_compile_context": False,
    "has_user_metadata": False,
    "has_event_pools": False,
    "has_internal_metadata": False,
}


def traits(release: str, **changes) -> Traits:
    """What a file of this release (the first of its range) has."""
    fields = {name: getattr(NOTHING, name) for name in Traits.__slots__}
    for (first, _), added in ADDED.items():
        fields.update(added)
        if first == release:
            return Traits(**fields | changes)
    raise KeyError(release)


@pytest.mark.parametrize(("first", "last"), ADDED)
def test_a_file_with_everything_shows_its_release(first, last):
    assert infer_era(traits(first)) == Era(first, last)


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
    assert infer_era(traits(release, **NO_EVENTS)) == Era(*era)


@pytest.mark.parametrize(("block_addresses", "era"), [(True, ("2.1", None)), (False, ("2.0", "2.0"))])
def test_a_bare_list_of_segments_rules_no_later_release_out(block_addresses, era):
    """memory_snapshot() returns one in every release: it has no place for settings or annotations."""
    bare = traits("2.0", is_whole=False, block_addresses=block_addresses, **NO_EVENTS)
    assert infer_era(bare) == Era(*era)


def test_a_file_with_nothing_in_it_could_be_any_release():
    empty = traits("2.0", is_whole=False, has_blocks=False, **NO_EVENTS)
    assert infer_era(empty) == Era("2.0", None)


def test_a_newer_key_outweighs_an_older_one_that_is_missing():
    """Synthetic files leave keys out; skip_actions and other wrappers too."""
    assert infer_era(traits("2.12", has_settings=False, settings_keys=frozenset())) == Era("2.12", "2.13")


@pytest.mark.parametrize(
    ("changes", "era"),
    [
        ({"backend": "npu"}, Era("2.3", None, "npu")),
        ({"backend": "xpu"}, Era("2.11", None, "xpu")),
        ({"is_plot": True}, Era("2.3", None)),
    ],
)
def test_a_key_that_its_writer_never_writes_rules_nothing_out(changes, era):
    assert infer_era(traits("2.3", **changes)) == era


@pytest.mark.parametrize("backend", ["npu", "xpu"])
def test_the_backend_is_passed_on(backend):
    assert infer_era(traits("2.5", backend=backend)).backend == backend


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
