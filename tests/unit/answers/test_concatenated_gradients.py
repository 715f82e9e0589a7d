"""Small gradients that are views of a whole concatenation's gradient, and keep it."""

import json

import pytest

import snapconv
from snapconv.cli.app import main
from tests.builders import MIB, TraceBuilder, frame
from tests.faulty_jobs import BACKWARD, PLACEMENT, STEP, TORCH, Job, at, layer
from tests.metadata_builder import memory_row, metadata, parameter

CAT = frame("at::_ops::cat::call(c10::IListRef<at::Tensor> const&, long)", "??")
ENGINE = at(30, *reversed(BACKWARD))
ZERO_GRAD = at(31, frame("zero_grad", f"{TORCH}/optim/optimizer.py"))
WHOLE, PART = 10 * MIB, 4096


class Steps:
    """Steps of layers that put a few tokens of their own before their input.

    ``clones``: the program clones each gradient when it is made. ``n_parts``: parameters that share
    a whole.
    """

    def __init__(self, *, clones=False, n_parts=1):
        self.trace, self.job = self, Job(TraceBuilder().segment(1 << 30, traced=False))
        self.names, self.gradients = [], []
        size = PART if n_parts == 1 else WHOLE // n_parts
        for number in range(3 * n_parts):
            addr = self.job.alloc(size, at(5, PLACEMENT))
            self.names.append(parameter(f"{number}.tokens", addr, size, self.now))
        for iteration in range(3):
            wholes = [self.job.alloc(MIB, [CAT, *at(20, *layer(i))]) for i in range(3)]
            gradients = []
            for number, whole in enumerate(wholes):
                gradient = self.job.alloc(WHOLE, ENGINE)
                self.job.free([whole], ENGINE)
                if clones:
                    gradients.append(self.job.alloc(size, ENGINE))
                following = self.job.alloc(MIB, ENGINE)
                if clones:
                    self.job.free([gradient], ENGINE)
                else:
                    gradients.append(gradient)
                self.job.free([following], ENGINE)
                for part in range(n_parts):
                    about = {"parameter": number * n_parts + part, "iteration": iteration}
                    self.gradients.append(memory_row(gradients[-1], size, self.now, **about))
            self.job.trace.alloc(512, frames=STEP).free(frames=STEP)
            self.job.free(gradients, ZERO_GRAD)

    @property
    def now(self):
        return self.job.trace.events[-1]["time_us"]

    def write(self, path):
        return self.job.trace.write(
            path, snapconv=metadata(parameters=self.names, gradients=self.gradients)
        )


def test_a_small_gradient_keeps_that_of_a_whole_concatenation(advice_on):
    cloned, kept = advice_on(Steps(clones=True)), advice_on(Steps())
    (fault,) = kept.faults
    assert (fault.kind, fault.is_certain, fault.n_allocations) == ("gradient-views", False, 9)
    assert (
        fault.wrong_if
        == "the memory holds gradients that the program keeps itself, as retain_grad() does"
    )
    assert fault.peak.n_bytes == pytest.approx(cloned.peak.n_bytes, rel=0.03)
    assert "3 small gradients, such as that of 0.tokens." in fault.what
    assert cloned.faults == ()


def test_gradients_that_fill_a_buffer_together_are_no_fault(advice_on):
    assert advice_on(Steps(n_parts=4)).faults == ()


def test_without_a_record_of_gradients_nothing_is_said(advice_on):
    steps = Steps()
    assert advice_on(steps.job).faults == ()


def test_text_json_and_verdict_say_the_same(tmp_path, capsys):
    file = str(Steps().write(tmp_path / "s.pickle"))
    (fault,) = snapconv.load(file).advise()[0].faults
    main(["advise", file])
    text = capsys.readouterr().out
    main([file])
    verdict = capsys.readouterr().out
    main(["advise", file, "--json"])
    (found,) = json.loads(capsys.readouterr().out)["devices"][0]["findings"]
    assert (found["what"], found["is_certain"]) == (fault.what, False)
    assert f"fault: {fault.what}" in text
    assert f"likely fault: {fault.what[:-1]}" in verdict
