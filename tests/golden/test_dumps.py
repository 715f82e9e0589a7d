"""Whole Skyline reports are what they were when somebody read them; see dumps.py."""

import json

import pytest

from tests.golden.dumps import FIXTURES, FOLDER, GOLDEN, dumps

WRAPPINGS = (
    "protocol_2.pickle",
    "protocol_3.pickle",
    "protocol_5.pickle",
    "trailing_nuls.pickle",
    "cpp_writer.pickle",
    "gzipped.pickle.gz",
    "as_json.json",
    "viewer_page.html",
    "viewer_page_of_two.html",
    "lists_for_tuples.pickle",
    "user_metadata.pickle",
    "newer_than_known.pickle",
)


def only_report(fixture):
    (text,) = dumps(fixture).values()
    return text


@pytest.mark.parametrize("fixture", GOLDEN)
def test_a_report_is_the_golden_one(fixture):
    for name, text in dumps(fixture).items():
        assert text == (FOLDER / name).read_text(encoding="utf-8"), "python -m tests.golden.dumps"


def test_every_golden_file_belongs_to_a_fixture():
    made = {name for fixture in GOLDEN for name in dumps(fixture)}
    assert made == {path.name for path in FOLDER.glob("*.sql")}


@pytest.mark.parametrize("ordinal", ["0", "2"])
def test_the_golden_peaks_are_those_of_the_model(ordinal):
    expected = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
    figures = expected["good"]["several_devices.pickle"]["devices"][ordinal]
    text = (FOLDER / f"several_devices.cuda{ordinal}.sql").read_text(encoding="utf-8")
    assert f"('peak_usage_bytes', {figures['allocated']['peak']})" in text


@pytest.mark.parametrize("fixture", WRAPPINGS)
def test_neither_the_wrapping_nor_further_keys_change_a_report(fixture):
    assert only_report(fixture) == only_report("torch_2_10.pickle")


def test_windows_paths_change_no_report():
    golden = (FOLDER / "perceptron.sql").read_text(encoding="utf-8")
    assert only_report("windows_paths.pickle") == golden
