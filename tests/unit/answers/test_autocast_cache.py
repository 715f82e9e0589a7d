"""The copies of weights that autocast caches: with C++ frames and without, in inference and in training."""

import base64
import json
import pickle
import re
import zlib
from pathlib import Path

import pytest

import snapconv
from snapconv.cli.app import main
from snapconv.convert import ConvertOptions, to_sqlite
from tests.builders import MIB, TraceBuilder, frame
from tests.tables import ask

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py")
MAIN = frame("main", "/home/me/project/infer.py", 70)
PLACE = [
    frame("_apply", f"{TORCH}/nn/modules/module.py"),
    frame("build", "/home/me/project/infer.py", 9),
]
EXIT = [frame("__exit__", f"{TORCH}/amp/autocast_mode.py", 349), MAIN]
CAST = frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "??", 0)
RELEASE = [
    frame("torch::autograd::generated::AddmmBackward0::release_variables()", "??", 0),
    frame("torch::autograd::Engine::evaluate_function()", "??", 0),
]
CASES = Path(__file__).parents[4] / "shared" / "cases" / "2026-11-28"
WEIGHTS = (10 * MIB, 8 * MIB, 12 * MIB)


def run(*, cpp, trains=False, calls=2, leaves=True, again=0, weights=WEIGHTS):
    """Each weight is cast before its layer, with the layer's input; a graph keeps both up to backward.

    ``again``: so many further calls in each block, which read the copies.
    """
    trace = TraceBuilder().segment(1 << 28)
    for size in weights:
        trace.alloc(size, frames=PLACE)

    def alloc(size, stack, *more):
        trace.alloc(size, frames=[*(frames for frames in more if cpp), *stack])
        return trace.events[-1]["addr"]

    for _ in range(calls):
        copies, saved = [], []
        for number, size in enumerate(weights):
            stack = [frame(f"layer{number}", "/home/me/project/model.py", number + 1), CALL, MAIN]
            copies.append(alloc(size // 2, stack, CAST))
            # The input of the second layer is as large as the copy of its weight.
            saved.append(alloc((4 if number == 1 else 1) * MIB, stack, CAST))
            saved.append(alloc(MIB // 2, stack, frame("at::_ops::addmm::call()", "??", 0)))
            if not trains:
                trace.free(saved.pop(-2), frames=stack)
        for number in [*range(len(weights))] * again:
            stack = [frame(f"layer{number}", "/home/me/project/model.py", number + 1), CALL, MAIN]
            trace.free(
                alloc(MIB // 2, stack, frame("at::_ops::addmm::call()", "??", 0)), frames=stack
            )
        if trains:
            for addr in (*saved, *copies):
                trace.free(addr, frames=RELEASE if cpp else [])  # the engine's thread
        else:
            for addr in saved[:-1]:
                trace.free(addr, frames=[MAIN])
            if leaves:
                for addr in reversed(copies):
                    trace.free(addr, frames=EXIT)
            trace.free(saved[-1], frames=[MAIN])
    return trace


@pytest.fixture
def written(tmp_path):
    return lambda **how: str(run(**how).write(tmp_path / "s.pickle"))


@pytest.mark.parametrize("cpp", [True, False], ids=["C++ frames", "Python frames"])
def test_its_copies_are_weights_and_cost_nothing_to_avoid(cpp, written):
    (advice,) = snapconv.load(written(cpp=cpp)).advise()
    (finding,) = advice.findings
    assert (finding.kind, finding.sort, finding.is_certain) == ("autocast-cache", "free", True)
    assert finding.where.place == "infer.py:70"
    assert "3 copies of weights" in finding.what
    assert finding.how[0] == "Pass cache_enabled=False to torch.autocast."
    # One copy at a time is left: that of the second layer, with its input, its result and the one
    # before.
    assert finding.peak.n_bytes == (30 + 4 + 4 + 1) * MIB
    assert advice.contents["weight"] == 30 * MIB + 15 * MIB


def test_without_frames_of_torch_the_bytes_at_the_peak_are_the_same(written):
    peaks = [snapconv.load(written(cpp=cpp)).advise()[0].findings[0].peak for cpp in (True, False)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("cpp", [True, False], ids=["C++ frames", "Python frames"])
def test_copies_that_a_block_reads_again_have_a_price(cpp, written):
    """Without the cache each of several calls in one block casts every weight anew."""
    file = written(cpp=cpp, again=1)
    session = snapconv.load(file)
    assert session.advise()[0].findings == ()
    (finding,) = session.advise(trades=True)[0].findings
    assert (finding.kind, finding.sort, finding.is_certain) == (
        "autocast-cache-in-use",
        "trade",
        True,
    )
    assert finding.costs == "time: each further use of a weight in the block casts it again"
    assert finding.peak.n_bytes == (30 + 4 + 4 + 1) * MIB


@pytest.mark.parametrize("cpp", [True, False], ids=["C++ frames", "Python frames"])
def test_in_training_the_graph_keeps_the_copies_too_so_that_nothing_is_saved(cpp, written):
    file = written(cpp=cpp, trains=True)
    (advice,) = snapconv.load(file).advise()
    assert [one.kind for one in advice.findings] == []
    # Inputs are cast by the same code, and one is as large as a copy.
    assert (advice.contents["weight"], advice.contents["activation"]) == (
        45 * MIB,
        (6 * MIB + MIB // 2 * 3),
    )


def trained(
    before, sizes_of_casts, *, weights=(10 * MIB, 8 * MIB, 12 * MIB), product=(), norms=(8,)
):
    """Each layer norms what it gets, casts, and multiplies; a graph keeps all up to backward.

    ``product``: the frames of the line that multiplies, if all layers have the same. ``norms``:
    MiB of the norms, in turn.
    """
    trace = TraceBuilder()
    if before:
        trace.segment(before, traced=False).alloc(before, traced=False, frames=[])
    trace.segment(1 << 28)
    for size in weights:
        trace.alloc(size, frames=PLACE)
    kept = []
    for number, casts in enumerate(sizes_of_casts):
        stack = [frame(f"layer{number}", "/home/me/project/model.py", number + 1), CALL, MAIN]
        norm = [frame("at::_ops::native_layer_norm::call()", "??", 0), *stack]
        result = [frame("at::_ops::bmm::call()", "??", 0), *product, *stack]
        for size, frames in (
            (norms[number % len(norms)] * MIB, norm),
            *((one, [CAST, *product, *stack]) for one in casts),
            (MIB, result),
        ):
            trace.alloc(size, frames=frames)
            kept.append(trace.events[-1]["addr"])
    for addr in kept:
        trace.free(addr, frames=RELEASE)
    return trace


@pytest.mark.parametrize(
    ("before", "casts", "copies"),
    [
        # The workspace of cuBLAS is no weight: what is half as large may be anything.
        (32 * MIB, [(5 * MIB, 16 * MIB), (6 * MIB, 16 * MIB)], 11 * MIB),
        # A product of several tensors casts its input first, which is as large as half a weight.
        (0, [(4 * MIB, 5 * MIB), (4 * MIB, 6 * MIB)], 11 * MIB),
        (0, [(5 * MIB, 4 * MIB), (6 * MIB, 4 * MIB)], 11 * MIB),
        # Queries and keys are results, each half as large as a weight by chance.
        (0, [(4 * MIB, 4 * MIB), (4 * MIB, 4 * MIB)], 0),
    ],
    ids=["workspace", "input first", "input last", "both of results"],
)
def test_inputs_that_are_cast_are_no_copies_of_weights(before, casts, copies, tmp_path, capsys):
    file = str(trained(before, casts).write(tmp_path / "s.pickle"))
    (advice,) = snapconv.load(file).advise()
    inputs = sum(map(sum, casts)) - copies
    assert advice.contents["weight"] == 30 * MIB + copies
    assert advice.contents["activation"] == inputs + 2 * 9 * MIB
    assert main(["summary", file]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"weight {(30 * MIB + copies) / MIB:.2f} MiB" in text
    assert main(["summary", file, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    bytes_of = {one["category"]: one["block_bytes"] for one in device["categories"]}
    assert (bytes_of["weight"], bytes_of["activation"]) == (30 * MIB + copies, inputs + 2 * 9 * MIB)


EINSUM = [
    frame("einsum", f"{TORCH}/functional.py", 380),
    frame("forward", "/home/me/project/linear.py", 41),
    CALL,
]


@pytest.mark.parametrize(
    ("last", "copies"),
    [
        ([(4, 4)], 4),
        # There is one weight of 8 MiB: two of its copies in one forward are too many.
        ([(4, 4), (4, 4)], 0),
        # The line has one that is no weight's: what is cast alone may be an input.
        ([(5,), (6,), (7,), (4,)], 5 + 6 + 7 + 4),
        ([(5,), (6,), (7,), (1,), (4,)], 5 + 6 + 7),
    ],
    ids=["one", "too many", "weights alone", "inputs too"],
)
def test_where_a_line_passes_its_weight_tells_which_of_two_equal_casts_is_the_weights(
    last, copies, tmp_path
):
    """Three pairs show that the line casts its input of 4 MiB first."""
    sizes = [(4, 5), (4, 6), (4, 7)] if len(last[0]) == 2 else []
    casts = [tuple(size * MIB for size in one) for one in [*sizes, *last]]
    weights = [size * MIB for size in (10, 12, 14, 8)]
    trace = trained(0, casts, weights=weights, product=EINSUM)
    (advice,) = snapconv.load(trace.write(tmp_path / "s.pickle")).advise()
    known = 5 + 6 + 7 if sizes else 0
    assert advice.contents["weight"] == sum(weights) + (known + copies) * MIB


@pytest.mark.parametrize(
    ("second", "copies"), [((5, 6), 5 + 6), ((5, 5), 0)], ids=["two sizes", "one size"]
)
def test_where_every_half_of_a_weight_may_be_of_a_result_pairs_of_several_sizes_tell(
    second, copies, tmp_path
):
    """The line casts an input of 3 MiB, which is no half of a weight, and then the weight."""
    weights = [2 * size * MIB for size in second * 2]
    casts = [(3 * MIB, size * MIB) for size in second * 2]
    trace = trained(0, casts, weights=weights, product=EINSUM, norms=(10, 12))
    (advice,) = snapconv.load(trace.write(tmp_path / "s.pickle")).advise()
    assert advice.contents["weight"] == sum(weights) + 2 * copies * MIB


@pytest.mark.parametrize(("weights", "n_bytes"), [(WEIGHTS[:2], 18 * MIB), (WEIGHTS, 45 * MIB)])
def test_without_any_frame_of_autocast_three_sizes_of_halves_are_copies_and_two_are_none(
    weights, n_bytes, written
):
    """Two programs were seen whose own tensors had half the size of a weight, of two sizes at most."""
    (advice,) = snapconv.load(written(cpp=False, leaves=False, calls=1, weights=weights)).advise()
    assert advice.contents["weight"] == n_bytes


def test_a_block_that_has_not_ended_keeps_them_as_well(written):
    (advice,) = snapconv.load(written(cpp=True, leaves=False, calls=1)).advise()
    assert [(one.kind, one.where.place) for one in advice.findings] == [
        ("autocast-cache", "infer.py:70")
    ]


def test_text_json_tables_and_page_agree(written, tmp_path, capsys):
    file = written(cpp=True)
    assert main(["advise", file]) == 0
    text = capsys.readouterr().out
    assert "no cost: autocast keeps 3 copies of weights in half precision" in text
    assert main(["advise", file, "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    (finding,) = device["findings"]
    assert (finding["kind"], finding["is_certain"]) == ("autocast-cache", True)
    assert ("certainty  certain" in text) is finding["is_certain"]
    to_sqlite(file, ConvertOptions(output=tmp_path / "r.sqlite", extended=True))
    query = (
        "SELECT category, certainty, rule, count(*), sum(block_bytes) FROM "
        "snapconv_allocations_in_words "
        "WHERE rule LIKE 'autocast%' GROUP BY 1, 2, 3"
    )
    assert ask(tmp_path / "r.sqlite", query) == [
        ("weight", "certain", "autocast-exit", 6, 30 * MIB)
    ]
    assert main(["view", file, "--output", str(tmp_path / "v.html")]) == 0
    values = re.search(rb'id="page">([^<]*)<', (tmp_path / "v.html").read_bytes())[1]
    (shown,) = json.loads(zlib.decompress(base64.b64decode(values)))["devices"][0]["advice"]
    assert dict(shown["rows"])["how"] == "Pass cache_enabled=False to torch.autocast."


def without_cpp(raw):
    """Take the frames of C++ out of a snapshot."""
    events = [event for trace in raw["device_traces"] for event in trace]
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    for row in (*events, *raw["segments"], *blocks):
        if "frames" in row:
            row["frames"] = [one for one in row["frames"] if one["filename"].endswith(".py")]
    return raw


@pytest.mark.skipif(not CASES.exists(), reason="the cases are not beside this checkout")
@pytest.mark.parametrize("cpp", [True, False], ids=["C++ frames", "Python frames"])
def test_a_forward_under_no_grad_has_no_graph_but_a_cache(cpp, tmp_path):
    raw = pickle.loads((CASES / "autocast_cache.pickle").read_bytes())
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(raw if cpp else without_cpp(raw)))
    (advice,) = snapconv.load(tmp_path / "s.pickle").advise()
    assert [(one.kind, one.where.place) for one in advice.findings] == [
        ("autocast-cache", "infer.py:70")
    ]
