"""``snapconv what-if``: its table, its JSON, and errors that say what to do."""

import json
from pathlib import Path

import pytest

from tests.builders import MIB, TraceBuilder

FIXTURES = Path(__file__).parents[3] / "fixtures"


def test_a_trial_that_runs_out_says_where_and_for_what(snapconv):
    path = FIXTURES / "training_step.pickle"
    _, out, _ = snapconv(
        "what-if", path, "--capacity", "0.5GiB", "--setting", "expandable_segments:True"
    )
    lines = out.splitlines()
    assert lines[0].startswith("cuda:0  does not fit in 512.00 MiB: at least ")
    assert lines[1] == "  3403 events replayed, with 512.00 MiB for PyTorch"
    assert lines[4].split()[:5] == ["out", "of", "memory", "at", "event"]
    assert " requested " in lines[5]
    assert lines[6].startswith("      cached for such requests: ")


def test_memory_without_a_trace_may_not_fit_either(tmp_path, snapconv):
    builder = TraceBuilder().segment(20 * MIB, traced=False).alloc(12 * MIB, traced=False)
    code, out, _ = snapconv("what-if", builder.write(tmp_path / "x.pickle"), "--capacity", "8MiB")
    assert code == 0
    assert "out of memory" in " ".join(out.split())


def test_json_has_what_the_table_has(snapconv):
    path = FIXTURES / "training_step.pickle"
    code, out, _ = snapconv("what-if", path, "--setting", "expandable_segments:True", "--json")
    (device,) = json.loads(out)["devices"]
    assert code == 0
    assert device["model_is_exact"] is True
    assert [one["setting"] for one in device["tried"]] == [
        "the file's own settings",
        "expandable_segments:True",
    ]
    assert device["tried"][0]["peak_reserved_bytes"] == device["recorded"]["peak_reserved"]
    assert device["tried"][1]["fits"] is True


def test_settings_that_fail_at_the_same_request_share_one_reason(snapconv):
    _, out, _ = snapconv(
        "what-if", FIXTURES / "training_step.pickle", "--search", "--capacity", "0.5GiB"
    )
    assert "max_split_size_mb:32, 128" in out
    first, *others = out.splitlines()
    assert sum(" requested " in line for line in others) == sum(
        line.startswith("  out of memory at event") for line in others
    )
    assert first.endswith("; none of these settings helps")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "say what to try"),
        (("--setting", "pinned_use_cuda_host_register:True"), "the model has no setting"),
        (("--capacity", "38"), "expected a size with its unit"),
        (("--capacity", "1GiB", "--card", "2GiB"), "not both"),
        (("--batch-scale", "0"), "expected more than 0"),
        (("--batch-scale", "nan"), "expected more than 0"),
    ],
)
def test_a_wrong_command_line_is_refused_before_the_file_is_read(options, message, snapconv):
    code, out, err = snapconv("what-if", "no such file", *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_nothing_is_recommended_where_the_file_has_no_order_of_allocations(tmp_path, snapconv):
    builder = TraceBuilder().segment(20 * MIB, traced=False).alloc(12 * MIB, traced=False)
    path = builder.write(tmp_path / "x.pickle")
    first = snapconv("what-if", path, "--search")[1].splitlines()[0]
    assert first.startswith("cuda:0  no setting is recommended: the order of the allocations ")
    assert "what-if" not in snapconv("fragmentation", path)[1]


def test_a_recommendation_names_what_it_is_compared_with(snapconv):
    lines = snapconv("what-if", FIXTURES / "training_step.pickle", "--search")[1].splitlines()
    assert lines[3].endswith("  as recorded")
    assert " less than recorded: export " in lines[0]
