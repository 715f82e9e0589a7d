"""Scores of attention around a softmax of the program's own: which tensors a fused kernel saves."""

import pytest

from tests.builders import MIB, frame
from tests.unit.answers.test_advice import CALL, ENGINE, Loop, at

PROJECT = "/home/me/project"


def attention(line, *inner):
    """The stack of a tensor that a function `attend` makes, or what it calls."""
    return [*inner, frame("attend", f"{PROJECT}/model.py", line), CALL, *at(20)]


def softmax(line, *, is_module=False):
    if is_module:
        return attention(14, frame("forward", f"{PROJECT}/layers/softmax.py", line), CALL)
    return attention(14, frame("softmax", f"{PROJECT}/tools.py", line))


def einsum(line):
    return attention(line, frame("einsum", "/usr/lib/site-packages/einops/einops.py", 900))


def linear(line):
    return [frame("forward", f"{PROJECT}/layers/linear.py", 9), CALL, *attention(line)]


def norm():
    file = f"{PROJECT}/layers/norm.py"
    native = frame("at::_ops::mul_Tensor::call(at::Tensor const&)", "??")
    return [native, frame("forward", file, 9), CALL, *at(20)]


def train(layer, n_layers=2, gradients=()) -> Loop:
    """Run steps of layers: MiB, stack, and whether backward needs it, else the layer frees it.

    A loss of 64 MiB, outside of the layers, makes the peak beside what backward needs.
    ``gradients``: MiB that backward allocates before it frees anything.
    """
    loop = Loop()
    for _ in range(2):
        saved = []
        for _ in range(n_layers):
            temporary = []
            for size, stack, is_saved in layer:
                addr = loop.alloc(size * MIB, stack)
                (saved if is_saved else temporary).append(addr)
            for addr in temporary:
                loop.trace.free(addr, frames=at(20))
        loop.trace.alloc(64 * MIB, frames=at(21)).free(frames=at(21))
        saved += [loop.alloc(size * MIB, ENGINE) for size in gradients]
        for addr in reversed(saved):
            loop.trace.free(addr, frames=ENGINE)
    return loop


def finding_of(advice):
    return next((one for one in advice.findings if one.kind == "attention"), None)


@pytest.mark.parametrize("is_module", [False, True])
def test_the_scores_of_a_programs_own_softmax_go_and_what_feeds_them_stays(advice_on, is_module):
    """Two scores of 16 MiB in each layer; norm, queries, keys, values and result of 4 MiB stay.

    The product's copy of the values goes, and the values stay instead.
    """
    layer = [
        (4, norm(), True),
        (4, linear(10), False),  # the values, of which the product makes a copy
        (4, attention(11), True),
        (4, attention(11), True),
        (16, einsum(12), False),
        (16, softmax(6, is_module=is_module), True),
        (1, softmax(7, is_module=is_module), True),
        (16, softmax(7, is_module=is_module), True),
        (4, einsum(15), True),
        (4, linear(16), True),
    ]
    advice = advice_on(train(layer))
    finding = finding_of(advice)
    assert finding.line.place == "model.py:12"
    assert " has 4 tensors " in finding.what
    assert finding.peak.n_bytes == (64 + 2 * (4 + 2 * 4 + 1 + 4 + 4)) * MIB


def test_scores_in_half_precision_are_counted_where_the_caller_made_them(advice_on):
    """Under autocast the product reads a copy of the softmax in 16 bits, and its result is smaller."""
    layer = [
        (8, einsum(12), False),
        (16, softmax(7), True),
        (8, einsum(15), True),
        (2, einsum(15), False),
    ]
    finding = finding_of(advice_on(train(layer)))
    assert " has 4 tensors " in finding.what
    assert finding.peak.n_bytes == 64 * MIB


def test_values_of_half_the_size_of_the_scores_are_no_scores(advice_on):
    """Without autocast, a copy of the values and the result may have half the scores' size."""
    layer = [
        (16, einsum(12), False),
        (16, softmax(7), True),
        (8, einsum(15), True),
        (8, einsum(15), False),
    ]
    finding = finding_of(advice_on(train(layer)))
    assert " has 2 tensors " in finding.what


def test_a_mask_with_a_byte_for_each_score_goes_with_the_scores(advice_on):
    """`mask == 0` on a mask that is expanded over the batch and heads; a fill reads it in backward."""
    layer = [
        (16, einsum(12), False),
        (4, [frame("at::_ops::eq_Scalar::call(at::Tensor const&)", "??"), *attention(13)], True),
        (16, softmax(7), True),
        (2, linear(16), True),
    ]
    finding = finding_of(advice_on(train(layer)))
    assert " has 4 tensors " in finding.what
    assert finding.peak.n_bytes == (64 + 2 * 2) * MIB


def test_under_autocast_the_fused_kernel_keeps_the_casts_of_its_inputs_and_not_the_inputs(
    advice_on,
):
    """Queries and keys of 8 MiB are freed once they are cast to 4; the values have 4 without a cast."""
    cast = frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "??")
    layer = [
        (8, attention(10), False),
        (8, attention(11), False),
        (4, linear(9), False),
        (4, [cast, *einsum(12)], True),
        (4, [cast, *einsum(12)], True),
        (16, einsum(12), False),
        (16, softmax(7), True),
        (4, einsum(15), True),
        (2, linear(16), True),
    ]
    finding = finding_of(advice_on(train(layer)))
    assert finding.peak.n_bytes == (64 + 2 * (4 + 4 + 4 + 2)) * MIB


def test_the_gradients_of_a_softmax_of_several_steps_go_with_the_scores(advice_on):
    """Nothing but the scores has their size; backward makes five such gradients at its peak."""
    layer = [(16, einsum(12), False), (16, softmax(7), True), (2, linear(16), True)]
    finding = finding_of(advice_on(train(layer, gradients=[16] * 5)))
    assert finding.peak.n_bytes == (64 + 2 * 2) * MIB


def test_a_softmax_of_several_steps_over_classes_is_no_attention(advice_on):
    """Its function makes nothing of the size but in the softmax: a layer of its own made the input."""
    layer = [(16, linear(10), True), (16, softmax(6), True), (16, softmax(7), True)]
    assert finding_of(advice_on(train(layer))) is None
