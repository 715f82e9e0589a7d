"""Allocator settings against what CUDA builds of torch make of them (scripts/measure_allocator_settings)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from snapconv.allocator.allocator_settings import AllocatorSettings, require_taken
from snapconv.errors import SettingError
from snapconv.snapshot.segment_table import read_settings
from snapconv.torch_knowledge.backends import conf_of

TABLE = Path(__file__).with_name("settings_of_torch.tsv")
CONF, HIP, GENERAL = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
# The backend is taken; it is its snapshot that there is not.
TAKEN = ("{", "RuntimeError: Calling snapshot with backend:cudaMallocAsync")


class Seen(NamedTuple):
    """What a release makes of an environment: a cell of the table."""

    release: str
    environment: dict[str, str]
    cell: str

    @property
    def is_taken(self) -> bool:
        return self.cell.startswith(TAKEN)

    @property
    def values(self) -> dict[str, object]:
        """The settings of a snapshot that differ from those without a variable."""
        return json.loads(self.cell)


def seen() -> Iterator[Seen]:
    (_, *releases), *rows = (line.split("\t") for line in TABLE.read_text("utf-8").splitlines())
    for environment, *cells in rows:
        last = ""
        for release, cell in zip(releases, cells, strict=True):
            last = last if cell == "=" else cell
            yield Seen(release, json.loads(environment), last)


# Before 2.10 ``>`` also has the last size that was named; where a file has values, they are read.
ENDS_DIFFER = "2.9.1"
# CUDA builds take options of CUDA alone from the general variable, where HIP's gives all others.
CELLS = [one for one in seen() if HIP not in one.environment]
OF_HIP = [one for one in seen() if HIP in one.environment]
RELEASES = sorted({one.release for one in CELLS})


def shown(settings: AllocatorSettings) -> dict[str, object]:
    """The settings as a cell has them."""
    values = settings.as_snapshot()
    return values | {"roundup_power2_divisions": list(values["roundup_power2_divisions"].values())}


def taken(conf: str, release: str) -> bool:
    try:
        require_taken(conf, release)
    except SettingError:
        return False
    return True


def differing(conf: str) -> dict[str, object]:
    defaults = shown(AllocatorSettings())
    values = shown(AllocatorSettings.from_conf(conf))
    return {key: value for key, value in values.items() if value != defaults[key] and key != CONF}


def test_the_table_has_two_hundred_texts_of_four_releases_and_more():
    assert {release.rpartition(".")[0] for release in RELEASES} >= {"2.9", "2.12", "2.14", "2.15"}
    assert len({str(one.environment) for one in CELLS}) >= 200


@pytest.mark.parametrize("release", RELEASES)
def test_a_text_is_taken_where_the_release_takes_it(release):
    cells = [one for one in CELLS if one.release == release]
    assert [
        one for one in cells if taken(conf_of(one.environment, release), release) != one.is_taken
    ] == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_text_has_the_values_that_a_snapshot_of_the_release_has(release):
    cells = [
        one
        for one in CELLS
        if one.release == release and one.environment and one.cell.startswith("{")
    ]
    assert len(cells) > 100
    for one in cells:
        conf = conf_of(one.environment, release)
        values = {key: value for key, value in one.values.items() if key != CONF}
        if release != ENDS_DIFFER or ">" not in conf:
            assert differing(conf) == values, one


def test_defaults_are_those_of_each_release():
    ours = shown(AllocatorSettings())
    for one in CELLS:
        if not one.environment:
            assert {key: ours[key] for key in one.values} == one.values


def test_a_file_with_a_text_that_torch_takes_has_the_same_settings_by_text_and_by_values():
    """What stands only in the text is read from it; what stands in both is the same."""
    for one in CELLS:
        if one.cell.startswith("{") and one.release == RELEASES[-1]:
            conf = conf_of(one.environment, one.release)
            values = AllocatorSettings.from_conf(conf).as_snapshot()
            in_file, _ = read_settings(values, "allocator_settings")
            assert in_file.as_snapshot() | {"max_split_size": 0} == values | {"max_split_size": 0}
            of_text = AllocatorSettings.from_conf(conf)
            assert in_file.max_non_split_rounding_bytes == of_text.max_non_split_rounding_bytes
            assert in_file.large_segment_bytes == of_text.large_segment_bytes


def test_of_a_text_in_a_file_a_value_that_torch_refuses_is_left_out_alone():
    conf = (
        "max_split_size_mb:few,max_non_split_rounding_mb:64,foo:1,per_process_memory_fraction:0.5"
    )
    found, _ = read_settings({CONF: conf}, "allocator_settings")
    assert (found.max_split_size_bytes, found.memory_fraction) == (None, 0.5)
    assert found.max_non_split_rounding_bytes == 64 << 20


@pytest.mark.parametrize("release", RELEASES)
def test_the_variable_of_hip_comes_between_the_two_others_on_cuda_too(release):
    for one in OF_HIP:
        if one.release == release and one.cell.startswith("{") and len(one.environment) > 1:
            conf = conf_of(one.environment, release)
            assert one.values.get(CONF, "") in (conf, "") or one.values == {}


def test_before_2_10_the_general_variable_is_not_read():
    both = {GENERAL: "expandable_segments:True", CONF: "max_split_size_mb:64"}
    assert conf_of(both, "2.9.1") == conf_of(both, "2.15.0") == "max_split_size_mb:64"
    assert conf_of({GENERAL: "expandable_segments:True"}, "2.9.1") == ""
    assert conf_of({GENERAL: "expandable_segments:True"}, "2.10.0") == "expandable_segments:True"
