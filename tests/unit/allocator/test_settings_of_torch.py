"""Allocator settings against what CUDA builds of torch make of them (scripts/measure_allocator_settings).

The table has texts that were chosen, and four hundred that were drawn from two fixed seeds before
they were tried; texts that a program sets at run time, too.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.errors import SettingError
from snapconv.simulation.machine import torch_error
from snapconv.snapshot.segment_table import read_settings
from snapconv.torch_knowledge.backends import conf_of

TABLE = Path(__file__).with_name("settings_of_torch.tsv")
CONF, HIP, GENERAL = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
# What a program sets at run time.
SET = "set"
NOT_TRIED = "?"
# The backend is taken; it is its snapshot that there is not.
TAKEN = ("{", "RuntimeError: Calling snapshot with backend:cudaMallocAsync")


class Cell(NamedTuple):
    """What a release makes of an environment."""

    release: str
    environment: dict[str, str]
    text: str

    @property
    def variables(self) -> dict[str, str]:
        return {name: text for name, text in self.environment.items() if name != SET}

    @property
    def then(self) -> dict[str, object] | None:
        """The settings after a refused text, if the next call shows them."""
        _, _, values = self.text.partition(" then ")
        return json.loads(values) if values else self.values

    @property
    def is_taken(self) -> bool:
        return self.text.startswith(TAKEN)

    @property
    def values(self) -> dict[str, object] | None:
        """The settings of a snapshot that differ from those without a variable, if there is one."""
        return json.loads(self.text) if self.text.startswith("{") else None


def read_cells() -> Iterator[Cell]:
    (_, *releases), *rows = (line.split("\t") for line in TABLE.read_text("utf-8").splitlines())
    for environment, *texts in rows:
        last = ""
        for release, text in zip(releases, texts, strict=True):
            last = last if text == "=" else text
            if last != NOT_TRIED:
                yield Cell(release, json.loads(environment), last)


ALL = list(read_cells())
CELLS = [cell for cell in ALL if SET not in cell.environment]
CHANGES = [cell for cell in ALL if SET in cell.environment]
RELEASES = sorted({cell.release for cell in CELLS})


def shown(settings: AllocatorSettings) -> dict[str, object]:
    """The settings as a cell has them."""
    values = settings.as_snapshot()
    return values | {"roundup_power2_divisions": list(values["roundup_power2_divisions"].values())}


def outcome(cell: Cell) -> tuple[str, dict[str, object]]:
    """The error that torch would raise, and the settings that differ from the defaults."""
    try:
        settings = AllocatorSettings.from_environment(cell.environment, cell.release)
    except SettingError as error:
        return type(torch_error(error, cell.release)).__name__, {}
    defaults = shown(AllocatorSettings())
    values = {key: value for key, value in shown(settings).items() if value != defaults[key]}
    # A cell leaves out the text of a single variable.
    if len(cell.environment) == 1:
        values.pop(CONF, None)
    return "", values


def test_the_table_has_hundreds_of_drawn_texts_of_four_releases_and_more():
    assert {release.rpartition(".")[0] for release in RELEASES} >= {"2.9", "2.12", "2.14", "2.15"}
    assert len({str(cell.environment) for cell in CELLS}) >= 700
    assert len({str(cell.environment) for cell in CHANGES}) >= 100


@pytest.mark.parametrize("release", RELEASES)
def test_a_text_is_taken_where_the_release_takes_it_else_refused_with_its_error(release):
    wrong = []
    for cell in CELLS:
        if cell.release == release:
            error, _ = outcome(cell)
            # A process that torch ends has no error.
            is_ended = cell.text.startswith("ended by") and bool(error)
            error_of_torch = "" if cell.is_taken else cell.text.partition(":")[0]
            if not is_ended and error != error_of_torch:
                wrong.append((cell, error))
    assert wrong == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_text_has_the_values_that_a_snapshot_of_the_release_has(release):
    cells = [cell for cell in CELLS if cell.release == release and cell.environment]
    cells = [cell for cell in cells if cell.values is not None]
    assert len(cells) > 150
    assert [(cell, outcome(cell)) for cell in cells if outcome(cell)[1] != cell.values] == []


def changed(cell: Cell) -> tuple[str, dict[str, object]]:
    """The error that torch would raise for a text at run time, and the settings that differ then."""
    settings = AllocatorSettings.from_environment(cell.variables, cell.release)
    settings, error = settings.reconfigured(cell.environment[SET], cell.release)
    defaults = shown(AllocatorSettings())
    values = {key: value for key, value in shown(settings).items() if value != defaults[key]}
    if not cell.variables:
        values.pop(CONF)
    if error is None:
        return "", values
    return type(torch_error(error, cell.release, is_runtime=True)).__name__, values


@pytest.mark.parametrize("release", RELEASES)
def test_a_text_set_at_run_time_changes_what_it_does_in_the_release_also_where_it_is_refused(
    release,
):
    wrong = []
    for cell in CHANGES:
        if cell.release == release and not cell.text.startswith("ended by"):
            error_of_torch = "" if cell.is_taken else cell.text.partition(":")[0]
            expected = error_of_torch, cell.then
            if changed(cell) != expected:
                wrong.append((cell.environment, changed(cell), expected))
    assert wrong == []


def test_defaults_are_those_of_each_release():
    ours = shown(AllocatorSettings())
    for cell in CELLS:
        if not cell.environment:
            assert {key: ours[key] for key in cell.values} == cell.values


def test_a_file_with_a_text_that_torch_takes_has_the_same_settings_by_text_and_by_values():
    """What stands only in the text is read from it; what stands in both is the same."""
    for cell in CELLS:
        if cell.values is not None and cell.release == RELEASES[-1] and HIP not in cell.environment:
            conf = conf_of(cell.environment, cell.release)
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


def test_a_cuda_build_reads_no_option_of_cuda_alone_from_the_variable_of_hip():
    hip = {HIP: "max_split_size_mb:64,per_process_memory_fraction:0.5"}
    settings = AllocatorSettings.from_environment(hip, "2.15.0")
    assert (settings.max_split_size_bytes, settings.memory_fraction) == (64 << 20, 1.0)
    both = hip | {GENERAL: "max_split_size_mb:32,per_process_memory_fraction:0.25"}
    settings = AllocatorSettings.from_environment(both, "2.15.0")
    assert (settings.max_split_size_bytes, settings.memory_fraction) == (64 << 20, 0.25)


def test_before_2_10_the_general_variable_is_not_read():
    both = {GENERAL: "expandable_segments:True", CONF: "max_split_size_mb:64"}
    assert conf_of(both, "2.9.1") == conf_of(both, "2.15.0") == "max_split_size_mb:64"
    assert conf_of({GENERAL: "expandable_segments:True"}, "2.9.1") == ""
    assert conf_of({GENERAL: "expandable_segments:True"}, "2.10.0") == "expandable_segments:True"
