"""Torch's own attention that returns weights, and its loss of a last layer: what they could save."""

import pytest

from tests.builders import MIB, frame
from tests.unit.answers.test_advice import CALL, ENGINE, STEP, TORCH, Loop, at
from tests.unit.answers.test_kinds import backwards, in_functional, operation

ATTENTION = "multi_head_attention_forward"


def attend(loop: Loop, *, has_own_queries: bool) -> list[int]:
    """Make what torch.nn.MultiheadAttention makes where it returns weights; return what is kept."""

    def alloc(size, line, *calls):
        functional = f"{TORCH}/nn/functional.py"
        inner = [frame(call, functional, 10) for call in calls]
        module = [CALL, frame("forward", f"{TORCH}/nn/modules/activation.py", 1)]
        outer = frame(ATTENTION, functional, line)
        return loop.alloc(size * MIB, at(20, *module, outer, *inner))

    queries = [alloc(2, 6871, "linear")] if has_own_queries else []
    packed = alloc(4 if has_own_queries else 6, 6871, "_in_projection_packed")
    scaled = alloc(2, 7025)
    scores = alloc(16, 7035)
    softmax = alloc(16, 7038, "softmax")
    loop.trace.free(scores, frames=at(20))
    mixed = alloc(2, 7042)
    rearranged = alloc(2, 7046)
    for addr in (mixed, *queries):
        loop.trace.free(addr, frames=at(20))
    return [packed, scaled, softmax, rearranged]


@pytest.mark.parametrize(
    ("has_own_queries", "n_kept"),
    [
        # Queries, keys and values are one tensor, which either kernel keeps.
        (False, 6 + 2 + 2),
        # The fused kernel keeps the queries; the other freed them once they were scaled.
        (True, 4 + 2 + 2 + 2),
    ],
)
def test_weights_that_attention_returns_cost_its_scores(advice_on, has_own_queries, n_kept):
    """The fused kernel keeps queries, keys, values and its output; the module rearranges that.

    The peak without scores is that of the loss, beside what two layers keep.
    """
    loop = Loop()
    for _ in range(2):
        kept = []
        for _ in range(2):
            kept += attend(loop, has_own_queries=has_own_queries)
        loop.trace.alloc(8 * MIB, frames=at(21)).free(frames=at(21))
        for addr in reversed(kept):
            loop.trace.free(addr, frames=ENGINE)
    (finding,) = advice_on(loop).findings
    assert (finding.kind, finding.sort) == ("attention", "free")
    assert finding.how == ("Pass need_weights=False to torch.nn.MultiheadAttention.",)
    assert finding.peak.n_bytes == (2 * n_kept + 8) * MIB


@pytest.mark.parametrize(
    ("function", "how", "costs"),
    [
        (
            "linear_cross_entropy",
            "Pass options=torch.nn.LinearCrossEntropyOptions() to linear_cross_entropy.",
            "no second backward through the loss, and no torch.compile for it",
        ),
        (
            "cross_entropy",
            "Compute the last layer and the loss in 8 chunks, each under torch.utils.checkpoint;",
            "the last layer runs twice",
        ),
    ],
)
def test_torchs_loss_of_a_last_layer_needs_its_options(advice_on, function, how, costs):
    """Without options it keeps the logits like the two calls that it stands for."""
    stack = in_functional(function, 3000)
    loop = backwards((16, operation("linear", *stack)), (16, operation("log_softmax", *stack)))
    findings = advice_on(loop, goal_bytes=MIB).findings
    (finding,) = [finding for finding in findings if finding.kind == "logits"]
    assert finding.how[0] == how
    assert finding.costs == costs


def attention_that_returns_weights(n_average: int, *, ends: str) -> Loop:
    """Make layers whose average of weights, of so many MiB, ends in forward or reaches backward."""
    loop = Loop()
    for _ in range(2):
        kept, averages = [], []
        for _ in range(2):
            kept += attend(loop, has_own_queries=False)
            outer = frame(ATTENTION, f"{TORCH}/nn/functional.py", 7053)
            module = [CALL, frame("forward", f"{TORCH}/nn/modules/activation.py", 1)]
            averages.append(loop.alloc(n_average * MIB, at(20, *module, outer)))
            if ends == "forward":
                loop.trace.free(averages.pop(), frames=at(20))
        loop.trace.alloc(8 * MIB, frames=at(21)).free(frames=at(21))
        for addr in reversed(kept):
            loop.trace.free(addr, frames=ENGINE)
        for addr in averages:
            loop.trace.free(addr, frames=at(22) if ends == "step" else ENGINE)
    return loop


@pytest.mark.parametrize("ends", ["forward", "backward", "step"])
def test_weights_of_attention_that_the_program_keeps_are_not_called_needless(advice_on, ends):
    findings = advice_on(attention_that_returns_weights(4, ends=ends)).findings
    assert ("attention" in {finding.kind for finding in findings}) is (ends == "forward")
    assert "masks" not in {finding.kind for finding in findings}


@pytest.mark.parametrize(("n_gradients", "is_advised"), [(2, True), (3, False)])
def test_weights_of_attention_that_a_loss_reads_have_a_gradient_more(
    advice_on, n_gradients, is_advised
):
    """Softmax and product have one each; the third is that of the average."""
    loop = Loop()
    for _ in range(2):
        layers = [attend(loop, has_own_queries=False) for _ in range(2)]
        loop.trace.alloc(16 * MIB, frames=at(21)).free(frames=at(21))
        for kept in reversed(layers):
            for _ in range(n_gradients):
                loop.trace.alloc(16 * MIB, frames=ENGINE).free(frames=ENGINE)
            for addr in reversed(kept):
                loop.trace.free(addr, frames=ENGINE)
    kinds = {finding.kind for finding in advice_on(loop).findings}
    assert ("attention" in kinds) is is_advised


def test_a_loss_of_a_last_layer_that_has_its_options_needs_none(advice_on):
    file = f"{TORCH}/nn/modules/linear_cross_entropy.py"
    inner = frame("_linear_cross_entropy_batch_chunked", file, 971)
    stack = [inner, *in_functional("linear_cross_entropy", 3000)]
    loop = backwards((16, operation("linear", *stack)), (16, operation("log_softmax", *stack)))
    assert "logits" not in {one.kind for one in advice_on(loop, goal_bytes=MIB).findings}


def loss_with_a_backward(*, weight: int, inputs: int, function: str) -> Loop:
    """Make logits of 16 MiB, and then the gradients of the last layer's weight and of its inputs."""
    stack = in_functional(function, 3000)
    loop = Loop()
    loop.alloc(weight * MIB, [frame("to", f"{TORCH}/nn/modules/module.py"), *at(5)])
    for _ in range(3):
        logits = loop.alloc(16 * MIB, operation("linear", *at(20)))
        log_softmax = loop.alloc(16 * MIB, operation("log_softmax", *stack))
        loop.trace.free(logits, frames=at(20))
        of_log_softmax = loop.alloc(16 * MIB, ENGINE)
        of_logits = loop.alloc(16 * MIB, ENGINE)
        loop.trace.free(of_log_softmax, frames=ENGINE).free(log_softmax, frames=ENGINE)
        of_weight = loop.alloc(weight * MIB, ENGINE)
        of_inputs = loop.alloc(inputs * MIB, ENGINE)
        loop.trace.free(of_logits, frames=ENGINE).free(of_inputs, frames=ENGINE)
        loop.trace.alloc(512, frames=STEP).free(frames=STEP)
        zero_grad = frame("zero_grad", f"{TORCH}/optim/optimizer.py")
        loop.trace.free(of_weight, frames=[zero_grad, *at(31)])
    return loop


@pytest.mark.parametrize("function", ["cross_entropy", "linear_cross_entropy"])
@pytest.mark.parametrize(
    ("weight", "inputs", "is_named"),
    [
        (4, 2, True),
        (16, 8, True),  # as many rows as inputs
        (2, 24, False),  # more inputs than classes
        (24, 2, False),  # more inputs than rows
    ],
)
def test_a_loss_that_makes_its_gradients_in_forward_is_named_where_it_pays(
    advice_on, function, weight, inputs, is_named
):
    """LinearCrossEntropyOptions of torch 2.13 says where: rows >= inputs, and classes > inputs."""
    loop = loss_with_a_backward(weight=weight, inputs=inputs, function=function)
    findings = advice_on(loop, goal_bytes=MIB).findings
    (how,) = [" ".join(finding.how) for finding in findings if finding.kind == "logits"]
    assert ("LinearCrossEntropyOptions" in how) is is_named
    assert how.startswith("Pass") is (is_named and function == "linear_cross_entropy")
    assert "It pays where" not in how


def test_where_a_fused_loss_pays_is_said_where_no_backward_shows_it(advice_on):
    stack = in_functional("cross_entropy", 3000)
    loop = backwards((16, operation("linear", *stack)), (16, operation("log_softmax", *stack)))
    findings = advice_on(loop, goal_bytes=MIB).findings
    (how,) = [" ".join(finding.how) for finding in findings if finding.kind == "logits"]
    assert "fewer inputs than classes" in how
