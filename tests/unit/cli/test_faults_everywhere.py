"""Faults in every output: text, JSON, page and the answers to agents say the same."""

import json

import pytest

from tests.faulty_jobs import graph_of_before_the_trace, steps_that_collect
from tests.unit.cli.test_mcp_command import served
from tests.unit.test_view import page_values

JOBS = {
    "graph": (
        graph_of_before_the_trace,
        "The old output (and its graph) is still alive while train.py:20 makes the next one",
    ),
    "cycles": (
        steps_that_collect,
        (
            "Reference cycles keep memory of earlier steps until Python's collector runs: state.py:7 "
            "made it"
        ),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    for name, (job, _) in JOBS.items():
        job().trace.write(folder / f"{name}.pickle")
    return folder


@pytest.mark.parametrize("name", JOBS)
def test_a_fault_is_in_the_text_the_json_and_the_page(snapconv, folder, name):
    path, sentence = folder / f"{name}.pickle", JOBS[name][1]
    for words in ((path,), ("advise", path), ("annotate", path)):
        assert f"likely fault: {sentence}" in " ".join(snapconv(*words).out.split())
    assert snapconv("advise", path).out.startswith("cuda:0  1 likely fault")
    (result,) = json.loads(snapconv("advise", path, "--format", "sarif").out)["runs"][0]["results"]
    assert result["message"]["text"].startswith(f"likely fault: {sentence}.")
    (device,) = json.loads(snapconv("advise", path, "--json").out)["devices"]
    assert device["findings"][0]["what"] == f"{sentence}."
    assert not device["findings"][0]["is_certain"]
    page = folder / f"{name}.html"
    snapconv("view", path, "-o", page)
    assert page_values(page)["devices"][0]["advice"][0]["what"] == f"likely fault: {sentence}."


def test_growth_names_reference_cycles_in_text_and_json(snapconv, folder):
    path = folder / "cycles.pickle"
    assert snapconv("growth", path).out.startswith(
        "cuda:0  up to 8.00 MiB of earlier steps stays in reference"
    )
    (device,) = json.loads(snapconv("growth", path, "--json").out)["devices"]
    assert (device["garbage"]["line"], device["garbage"]["n_collections"]) == (7, 3)


def test_an_agent_reads_the_same(folder):
    _, answers = served([folder], *(("advise", {"snapshot": f"{name}.pickle"}) for name in JOBS))
    for (_, text), (_, sentence) in zip(answers, JOBS.values(), strict=True):
        assert json.loads(text)["devices"][0]["findings"][0]["what"] == f"{sentence}."
