"""The compiled core and its twin in Python say the same of every file: tables, notes, curves, errors."""

import copy
import gzip
import pickle
import random
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import write_anew
from tests.drawn_inputs import SEED, drawn
from tests.fuzz.corpus import CONTAINERS, OLD, PICKLED, PLAIN, RICH, cpp_pickle, zipped
from tests.fuzz.test_damaged_bytes import mutate
from tests.fuzz.test_wrong_structure import COLUMNS, EDITS, FUZZ, LEAVES
from tests.property.histories import run, seeded_program, without_keys
from tests.twins import assert_twins_agree, goes_through_core, needs_core

pytestmark = needs_core

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
REAL = ROOT.parent / "shared" / "snapshots"
FILES = sorted(
    path
    for folder in (FIXTURES, REAL)
    for path in folder.rglob("*")
    if path.suffix in {".pickle", ".gz", ".html", ".json", ".pkl"} and ".truth" not in path.name
)
WRITERS = {
    **{f"protocol-{n}": (lambda raw, n=n: pickle.dumps(raw, n)) for n in (2, 3, 4, 5)},
    "cpp-writer": cpp_pickle,
}
N_CASES = drawn(120)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_twins_agree_about_every_file_there_is(path):
    assert_twins_agree(path)


@pytest.mark.parametrize("seed", range(drawn(40)))
def test_the_twins_agree_about_a_generated_history(seed, tmp_path):
    rng = random.Random(seed)
    history = run(seeded_program(seed, n_calls=rng.choice((50, 400, 2500))))
    lost = [key for key in ("time_us", "pool_id", "frames", "stream") if rng.random() < 0.15]
    path = tmp_path / "x.pickle"
    path.write_bytes(rng.choice(list(WRITERS.values()))(without_keys(history, *lost).snapshot))
    assert goes_through_core(path)
    assert_twins_agree(path)


@pytest.mark.parametrize("seed", range(drawn(25)))
def test_the_twins_agree_about_a_trace_that_contradicts_itself(seed, tmp_path):
    """Events are doubled or swapped: blocks overlap, are freed twice, lie outside their segments."""
    rng = random.Random(seed)
    snapshot = copy.deepcopy(run(seeded_program(seed)).snapshot)
    trace = snapshot["device_traces"][0]
    for _ in range(rng.choice((1, 3, 30)) if trace else 0):
        at, other = rng.randrange(len(trace)), rng.randrange(len(trace))
        match rng.randrange(6):
            case 0:
                trace[at] = dict(trace[other])
            case 1:
                trace[at], trace[other] = trace[other], trace[at]
            case 2:
                trace[at]["addr"] = trace[other].get("addr", 0) + rng.choice((0, 512, -512))
            case 3:
                trace[at]["size"] = rng.choice((0, 512, 1 << 21, 1 << 40))
            case 4:
                trace[at]["action"] = rng.choice(
                    ("free", "free_completed", "segment_unmap", "segment_map")
                )
            case 5:
                trace.insert(at, dict(trace[other]))
    for segment in snapshot["segments"]:
        if rng.random() < 0.05:
            segment["address"] += rng.choice((512, 1 << 21))
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    assert_twins_agree(path)


PACKERS = {"gzip": gzip.compress, "zip": zipped}


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name not in {"json", "html"}])
def test_the_twins_agree_about_damaged_bytes(name, tmp_path):
    rng = random.Random(f"twins {name}{SEED}")
    path, said = tmp_path / "x", Counter()
    for number in range(N_CASES):
        content = mutate(CONTAINERS[name], rng)
        if name in PACKERS and number % 2:
            content = PACKERS[name](mutate(PICKLED, rng))
        write_anew(path, content)
        said["an error" if isinstance(assert_twins_agree(path), str) else "read"] += 1
    assert said["read"]  # of what is packed, few are
    assert said["an error"] > N_CASES // 10


def test_the_twins_agree_about_a_file_that_is_cut_off(tmp_path):
    path = tmp_path / "x"
    for content in (PLAIN["protocol-4"], PLAIN["cpp-writer"], gzip.compress(PICKLED)):
        for n_bytes in range(0, len(content), max(len(content) // 60, 1)):
            write_anew(path, content[:n_bytes])
            assert isinstance(assert_twins_agree(path), str)


@pytest.mark.parametrize("base", [RICH, OLD], ids=["torch-2.12", "torch-2.0"])
@given(edits=EDITS, writer=st.sampled_from(sorted(WRITERS)))
@FUZZ
def test_the_twins_agree_about_wrong_values(tmp_path, base, edits, writer):
    raw = copy.deepcopy(base)
    for edit in edits:
        edit.apply(raw)
    path = tmp_path / "x.pickle"
    try:
        write_anew(path, WRITERS[writer](raw))
    except (TypeError, ValueError, RecursionError, UnboundLocalError, struct.error):
        return  # what this writer cannot write
    assert_twins_agree(path)


@given(where=st.sampled_from(COLUMNS), value=LEAVES)
@FUZZ
def test_the_twins_agree_about_any_value_in_any_column(tmp_path, where, value):
    raw = copy.deepcopy(RICH)
    *way, key = where
    target = raw
    for step in way:
        target = target[step]
    target[key] = value
    path = tmp_path / "x.pickle"
    write_anew(path, pickle.dumps(raw, 4))
    assert_twins_agree(path)
