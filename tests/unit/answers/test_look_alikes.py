"""Other explanations of findings: a trace of each gives no finding, or a likely one that names it."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from snapconv.answers.advice.evidence import FAULT, TRADE
from snapconv.answers.advice.findings import KINDS
from snapconv.answers.advice.look_alikes import LOOK_ALIKES
from snapconv.cli.app import main
from tests.builders import MIB, TraceBuilder, frame
from tests.faulty_jobs import COLLECTOR, PLACEMENT, graph_of_before_the_trace, steps_that_collect
from tests.unit.answers.test_advice import (
    CALL,
    ENGINE,
    NODE,
    STEP,
    TORCH,
    Loop,
    at,
    forwards,
    layer,
    training,
)
from tests.unit.answers.test_advice_copies import (
    CLONED,
    COPIED,
    LOADED,
    WEIGHTS,
    place,
    train_step,
    validate,
)
from tests.unit.answers.test_autocast_cache import run
from tests.unit.answers.test_concatenated_gradients import Steps
from tests.unit.answers.test_streams import calling, gathering, setting_up, written
from tests.unit.cli.test_mcp_command import served

EXIT = [frame("__exit__", f"{TORCH}/amp/autocast_mode.py"), *at(20)]
UPDATE = frame("update", "/usr/lib/python3/site-packages/transformers/cache_utils.py")
NODE_AT_LOSS = [*NODE, *at(21)]
ZERO_GRAD = [frame("zero_grad", f"{TORCH}/optim/optimizer.py"), *at(31)]


# --- copies of weights


def copies(*, stack=CLONED, early=False, validates=False, sizes=WEIGHTS):
    loop = Loop()
    place(loop)
    for _ in range(2):
        if not early:
            train_step(loop)
        if validates:
            validate(loop)
    for size in sizes:
        loop.alloc(size, stack)
    for _ in range(2):
        train_step(loop)
    return loop


# --- batches


def batches(*, number=6, at_end=False, step_of=1):
    """``number`` batches are copied to the device together, and each is used in its step, or all in one."""
    loop = Loop()
    place(loop)
    for _ in range(2):
        waiting = [loop.alloc(6 * MIB, COPIED) for _ in range(number)]
        for first in range(0, number, step_of):
            train_step(loop)
            if not at_end:
                for addr in waiting[first : first + step_of]:
                    loop.trace.free(addr, frames=at(32))
    return loop


# --- what a call leaves


def state():
    loop = Loop()
    loop.kept["state"] = [loop.alloc(10 * MIB, at(10))]
    for _ in range(3):
        loop.assign("state", 20, 10 * MIB)
    return loop


def longer():
    loop = Loop()
    for length in range(1, 5):
        loop.assign("cache", 20, length * 5 * MIB)
    return loop


def ahead():
    """The next batch comes while the model reads the one before; another line frees it."""
    loop, waiting = Loop(), None
    for _ in range(4):
        new = loop.alloc(10 * MIB, [*COPIED])
        loop.trace.alloc(20 * MIB, frames=at(20, *layer(1))).free(frames=at(20, *layer(1)))
        if waiting is not None:
            loop.trace.free(waiting, frames=at(33))
        waiting = new
    return loop


def outputs_of_layers():
    """Without a graph the call returns what each of eight layers made; the name keeps them until the next."""
    loop = Loop()
    for _ in range(3):
        loop.assign("states", 20, *[MIB * (1 + i) for i in range(8)])
    return loop


def casts(*, keeps=False):
    """Eight layers with weights of as many sizes, under autocast and no_grad."""
    loop = Loop()
    sizes = [2 * MIB * (1 + i) for i in range(8)]
    for size in sizes:
        loop.alloc(size, [frame("_apply", f"{TORCH}/nn/modules/module.py"), *at(5)])
    for number in range(4):
        loop.kept["casts"] = []
        for i, size in enumerate(sizes):
            loop.kept["casts"].append(loop.alloc(size // 2, at(20, *layer(i))))
            loop.trace.alloc(MIB, frames=at(20, *layer(i))).free(frames=at(20, *layer(i)))
        for addr in loop.kept.pop("casts"):
            loop.trace.free(addr, frames=EXIT)
        loop.assign(f"out {number}" if keeps else "out", 21, 512)
    return loop


def keys_and_values(*, keeps=False):
    loop = Loop()
    for number in range(4):
        name = f"cache {number}" if keeps else "cache"
        loop.kept[name] = [loop.alloc(4 * MIB, [UPDATE, *at(20, *layer(i))]) for i in range(8)]
        if not keeps:
            loop.delete(name, 20)
    return loop


def later(n_forwards, *, n_backwards=0):
    """Forwards whose graphs are there at the end, or until one backward went through all of them."""
    loop = Loop()
    loop.trace = TraceBuilder().segment(1 << 30, traced=False)
    for number in range(n_forwards):
        loop.assign(f"loss {number}", 20, *[2 * MIB] * 8)
        loop.trace.alloc(MIB, frames=at(21)).free(frames=at(22))
    for addr in [addr for name in loop.kept for addr in loop.kept[name]] if n_backwards else ():
        loop.trace.free(addr, frames=ENGINE)
    return loop


def offloaded():
    """Packing moves each to the CPU, and frees it within the model's call."""
    loop = Loop()
    for _ in range(3):
        for i in range(8):
            addr = loop.alloc(4 * MIB, at(20, *layer(i)))
            loop.alloc(512, at(20, *layer(i)))
            loop.trace.free(
                addr, frames=at(20, CALL, frame("pack_to_cpu", f"{TORCH}/autograd/graph.py"))
            )
    return loop


# --- gradients


def accumulation():
    """Of four backwards before each step the first makes gradients, and the others add to them."""
    loop = Loop()
    loop.alloc(10 * MIB, [frame("to", f"{TORCH}/nn/modules/module.py"), *at(5)])
    for _ in range(3):
        gradient = None
        for _ in range(4):
            loop.assign("loss", 20, 8 * MIB)
            loop.trace.free(loop.kept.pop("loss")[0], frames=ENGINE)
            gradient = gradient or loop.alloc(10 * MIB, ENGINE)
        loop.trace.alloc(MIB, frames=STEP).free(frames=STEP)
        loop.assign("metric", 25, 8 * MIB)
        loop.delete("metric", 25)
        loop.trace.free(gradient, frames=ZERO_GRAD)
    return loop


def later_step():
    """After the first optimizer's step comes a forward, then the step of another, which reads gradients."""
    second = [frame("_single_tensor_adam", f"{TORCH}/optim/adam.py"), *at(33)]
    loop = training(zero_grad_after=False)
    loop.trace.alloc(MIB, frames=second).free(frames=second)
    return loop


# --- growth


def collected(*, limit=None):
    """A list gets one tensor in every iteration; with a limit its oldest goes."""
    loop, kept = Loop(), []
    loop.alloc(10 * MIB, [frame("to", f"{TORCH}/nn/modules/module.py"), *at(5)])
    for _ in range(12):
        loop.assign("loss", 20, 8 * MIB)
        loop.trace.free(loop.kept.pop("loss")[0], frames=ENGINE)
        loop.trace.alloc(MIB, frames=STEP).free(frames=STEP)
        kept.append(loop.alloc(MIB, at(40)))
        if limit is not None and len(kept) > limit:
            loop.trace.free(kept.pop(0), frames=at(40))
    return loop


def one_text():
    """A cache lengthens with every word, and begins anew with every text."""
    loop = Loop()
    for _ in range(3):
        for length in range(1, 6):
            loop.assign("cache", 20, length * 2 * MIB)
        loop.delete("cache", 22)
    return loop


def warm_up():
    loop = Loop()
    for number in range(12):
        if number < 2:
            loop.alloc(8 * MIB, at(40))
        loop.assign("loss", 20, 8 * MIB)
        loop.trace.free(loop.kept.pop("loss")[0], frames=ENGINE)
        loop.trace.alloc(MIB, frames=STEP).free(frames=STEP)
    return loop


def half_model():
    """A model is cast to half precision by hand, and dropped after its forward."""
    loop = Loop()
    place(loop)
    halves = [loop.alloc(size // 2, at(12)) for size in WEIGHTS]
    loop.assign("out", 20, 8 * MIB)
    for addr in halves:
        loop.trace.free(addr, frames=at(22))
    return loop


class Built:
    """What has a trace that can be written, in place of a script: a builder, or an allocator."""

    def __init__(self, made):
        self.trace = made if hasattr(made, "write") else self
        self.write = lambda path: written(made, path)


PAIRS: dict[str, dict[str, Callable[[], Any]]] = {
    "weights-copied": {
        "average": lambda: copies(validates=True),
        "reference": lambda: copies(validates=True),
        "early-average": lambda: copies(early=True, validates=True),
        "masters": lambda: copies(validates=True, sizes=[2 * size + 512 for size in WEIGHTS]),
        "states": lambda: copies(stack=LOADED, early=True, sizes=WEIGHTS * 2),
        "casts": lambda: Built(run(cpp=True)),
    },
    "batches-early": {
        "data": lambda: batches(number=8, at_end=True),
        "micro-batches": batches,
        "queue": lambda: batches(number=3),
        "views": lambda: batches(step_of=3),
    },
    "previous-kept": {
        "state": state,
        "longer": longer,
        "ahead": ahead,
        "model": lambda: graph_of_before_the_trace(
            stack_of=lambda i: [PLACEMENT, frame("build", line=i)]
        ),
        "entry": lambda: graph_of_before_the_trace(entries=3),
        "collected": lambda: graph_of_before_the_trace(freed_at=[COLLECTOR, *NODE_AT_LOSS]),
        "outputs": outputs_of_layers,
        "later": lambda: later(2),
        "casts": casts,
    },
    "gradients-kept": {"accumulation": accumulation, "later-step": later_step},
    "gradient-views": {"shared": lambda: Steps(n_parts=4), "kept": Steps},
    "unused-graph": {
        "outputs": lambda: forwards(keeps=False, by=()),
        "later": lambda: later(1),
        "cache": keys_and_values,
        "casts": casts,
        "offloaded": offloaded,
    },
    "open-graph": {
        "outputs": lambda: later(1),
        "later": lambda: later(1),
        "cache": lambda: keys_and_values(keeps=True),
        "casts": lambda: casts(keeps=True),
    },
    "graphs-kept": {
        "outputs": lambda: forwards(keeps=True, by=()),
        "later": lambda: later(4),
        "parts": lambda: later(4, n_backwards=1),
        "cache": lambda: keys_and_values(keeps=True),
        "casts": lambda: casts(keeps=True),
    },
    "garbage": {
        "dropped": steps_that_collect,
        "cleared": lambda: steps_that_collect([at(18)] * 3),
        "window": lambda: steps_that_collect([ENGINE] * 3),
    },
    "growing": {
        "cycles": collected,
        "limited": lambda: collected(limit=20),
        "results": collected,
        "text": one_text,
        "warm-up": warm_up,
    },
    "late-frees": {"captured": lambda: Built(gathering(pool=(1, 0)))},
    "idle-cache": {
        "again": lambda: Built(setting_up(again=True)),
        "private": lambda: Built(setting_up(pool=(0, 3))),
    },
    "many-streams": {
        "overlap": lambda: Built(calling([1, 2, 3, 4])),
        "in-turn": lambda: Built(calling([1, 2, 3, 1, 2, 3])),
    },
    "autocast-cache": {
        "graph": lambda: Built(run(cpp=True, trains=True)),
        "half-model": half_model,
    },
}
# Their own words say when they are wrong.
WITH_CLAUSE = {kind.slug for kind in KINDS if kind.wrong_if}
ROWS = [(kind, other, make) for kind, rows in PAIRS.items() for other, make in rows.items()]


def test_every_fault_has_look_alikes_and_each_has_a_trace():
    for kind in KINDS:
        if kind.sort == FAULT:
            assert LOOK_ALIKES[kind.slug], kind.slug
        if kind.sort == FAULT or kind.slug in PAIRS:
            assert {one.slug for one in LOOK_ALIKES[kind.slug]} == set(PAIRS[kind.slug]), kind.slug
    assert set(LOOK_ALIKES) <= {kind.slug for kind in KINDS}


def test_a_trade_without_a_row_has_no_look_alikes():
    kind = replace(KINDS[-1], slug="new", costs="time")
    assert (kind.sort, kind.look_alikes(None), kind.look_alikes(("data",))) == (TRADE, (), ())


@pytest.mark.parametrize(
    ("kind", "other", "make"), ROWS, ids=[f"{kind}: {other}" for kind, other, _ in ROWS]
)
def test_what_looks_like_a_finding_is_none_or_is_named_by_a_likely_one(
    advice_on, kind, other, make
):
    (what,) = (one.what for one in LOOK_ALIKES[kind] if one.slug == other)
    for finding in advice_on(make()).findings:
        if finding.kind == kind:
            assert not finding.is_certain
            assert what in finding.could_be
            assert what in finding.wrong_if or kind in WITH_CLAUSE


def test_a_finding_is_certain_exactly_where_nothing_else_is_left(advice_on):
    for _, _, make in ROWS:
        for finding in advice_on(make()).findings:
            assert not (finding.is_certain and (finding.could_be or finding.wrong_if))
            if finding.kind not in WITH_CLAUSE:
                assert finding.is_certain is not bool(finding.could_be), finding


def with_statistics(*, number):
    """Forwards of eight layers; ``number`` of them keep two results of an operation, as a norm does."""
    loop = Loop()
    for _ in range(3):
        made = []
        for i in range(8):
            made += [
                loop.alloc(size, at(20, *layer(i))) for size in (4 * MIB, 512)[: 1 + (i < number)]
            ]
        for addr in made:
            loop.trace.free(addr, frames=at(20))
    return loop


@pytest.mark.parametrize(("number", "is_certain"), [(2, False), (3, True)])
def test_without_frames_of_nodes_a_graph_shows_by_statistics_that_no_name_keeps(
    advice_on, number, is_certain
):
    (fault,) = advice_on(with_statistics(number=number)).faults
    assert (fault.kind, fault.is_certain) == ("unused-graph", is_certain)


@pytest.mark.parametrize("by", [NODE, ()], ids=["certain", "likely"])
def test_text_json_verdict_and_page_have_the_same_certainty(by, tmp_path, capsys):
    file = str(forwards(keeps=False, by=by).trace.write(tmp_path / "s.pickle"))
    assert main(["advise", file, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["devices"][0]["findings"]
    assert (found["is_certain"], found["could_be"], found["wrong_if"]) == (
        (True, [], "")
        if by
        else (
            False,
            ["outputs, hidden states or features that the program keeps"],
            "the memory holds outputs, hidden states or features that the program keeps",
        )
    )
    sure = "certain" if by else f"likely; wrong if {found['wrong_if']}"
    assert main(["advise", file]) == 0
    assert f"certainty  {sure}\n" in capsys.readouterr().out
    assert main([file]) == 0
    assert ("likely fault: train.py:20" in capsys.readouterr().out) is not bool(by)
    assert main(["view", file, "--output", str(tmp_path / "v.html"), "--quiet"]) == 0
    values = re.search(rb'id="page">([^<]*)<', (tmp_path / "v.html").read_bytes())[1]
    (shown,) = json.loads(zlib.decompress(base64.b64decode(values)))["devices"][0]["advice"]
    assert dict(shown["rows"])["certainty"] == sure


def test_agents_get_the_certainty_too(tmp_path):
    for name, by in (("certain", NODE), ("likely", ())):
        forwards(keeps=False, by=by).trace.write(tmp_path / f"{name}.pickle")
    calls = [("advise", {"snapshot": f"{name}.pickle"}) for name in ("certain", "likely")]
    _, answers = served([tmp_path], *calls)
    found = [json.loads(text)["devices"][0]["findings"][0]["is_certain"] for _, text in answers]
    assert found == [True, False]
