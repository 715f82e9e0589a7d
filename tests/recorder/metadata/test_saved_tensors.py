"""The hooks for saved tensors: nothing computed differs, nothing is kept, nobody's hooks are disturbed."""

import gc
import weakref
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.recorder.metadata.watching import addr, train, watching  # noqa: E402

pytestmark = pytest.mark.smoke("metadata")

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 3), nn.Softmax(-1))


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def no_hooks() -> bool:
    # What goes through hooks comes back as another tensor. (Torch itself can answer since 2.8
    # only.)
    x = torch.ones(1, requires_grad=True)
    return (x * x).grad_fn._saved_self is x


def run(loss_of, watched):
    model = net()
    if watched:
        with watching(model=model):
            loss_of(model).backward()
    else:
        loss_of(model).backward()
    return gradients(model)


def double(model):
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(model(x).exp().sum(), x, create_graph=True)
    return g.square().sum()


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda model: model(X).square().sum(),
        double,
        lambda model: (
            checkpoint(model, X.clone().requires_grad_(), use_reentrant=True).square().sum()
        ),
        lambda model: checkpoint(model, X, use_reentrant=False).square().sum(),
    ],
    ids=["plain", "double backward", "reentrant checkpoint", "checkpoint"],
)
def test_gradients_are_bit_equal(loss_of):
    for watched, plain in zip(run(loss_of, True), run(loss_of, False), strict=True):
        assert torch.equal(watched, plain)


def test_a_graph_without_backward_is_freed_with_its_last_reference():
    with watching() as observer:
        model = net()
        gc.collect()
        gc.disable()
        try:
            out = model(X)
            storages = [weakref.ref(out.untyped_storage())]
            assert addr(out) in {row["addr"] for row in observer.facts({})["saved"]}
            del out
            assert storages[0]() is None
        finally:
            gc.enable()


def test_a_tensor_changed_in_place_after_it_was_saved_is_still_an_error():
    with watching():
        out = net()(X)
        out.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_hooks_that_were_there_first_get_every_tensor():
    packed = []
    with (
        watching() as observer,
        saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t),
    ):
        net()(X).sum().backward()
        assert observer.facts({})["saved"] == []
    assert packed


def test_hooks_that_come_later_are_left_in_place_and_ours_go_when_they_may():
    packed = []
    with watching():
        model = net()
        hidden = model[0](X)
        with saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
            n_before = len(packed)
            out = model[2](hidden)
            assert len(packed) > n_before
            out.sum().backward()
            n_before = len(packed)
            model[2](hidden.detach())
            assert len(packed) > n_before
    assert no_hooks()


def test_saving_on_the_cpu_still_works_around_and_within():
    with watching():
        model = net()
        with save_on_cpu():
            model(X).sum().backward()
        hidden = model[0](X)
        with save_on_cpu():
            out = model[2](hidden)
        out.sum().backward()
    assert no_hooks()


def test_functional_transforms_still_work():
    with watching():
        model = net()
        hidden = model(X)
        found = torch.func.grad(lambda x: x.square().sum())(X)
        torch.func.vmap(torch.func.jacrev(torch.sin))(X)
        hidden.sum().backward()
    assert torch.equal(found, 2 * X)


def test_hooks_are_gone_after_backward_step_iteration_and_end():
    with watching() as observer:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(X).sum()
        assert not no_hooks()
        loss.backward()
        assert no_hooks()
        model(X)
        optimizer.step()
        assert no_hooks()
        model(X)
        observer.iteration_ended(0)
        assert no_hooks()
        model(X)
    assert no_hooks()


def test_training_is_bit_equal_with_and_without():
    def trained(watched: bool):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if watched:
            with watching(model=model) as observer:
                train(model, lambda m: m(X).square().sum(), optimizer, 5, observer)
        else:
            train(model, lambda m: m(X).square().sum(), optimizer, 5)
        return [p.detach() for p in model.parameters()]

    for watched, plain in zip(trained(True), trained(False), strict=True):
        assert torch.equal(watched, plain)


class Product(torch.autograd.Function):
    """A function that asks its weight for more than its values, as fused kernels do."""

    seen: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        Product.seen.append(weight)
        return grad @ weight.t(), x.t() @ grad


# As scripts keep it: bound before anyone watches.
product = Product.apply


def by_its_class(x, weight):
    return Product.apply(x, weight)


@pytest.mark.parametrize("call", [by_its_class, product], ids=["by its class", "kept"])
def test_a_function_of_the_users_gets_back_the_very_tensors_that_it_saved(call):
    Product.seen.clear()
    with watching() as observer:
        model = net()
        hidden = model(X)
        call(hidden, model[2].weight).sum().backward()
        saved = {row["addr"] for row in observer.facts({})["saved"]}
    (weight,) = Product.seen
    Product.seen.clear()
    assert weight is model[2].weight
    assert {addr(hidden), addr(weight)} <= saved
    assert no_hooks()


def test_after_a_function_of_the_users_saved_tensors_are_noted_as_before():
    with watching() as observer:
        model = net()
        out = product(model(X), model[2].weight).exp()
        assert addr(out) in {row["addr"] for row in observer.facts({})["saved"]}
        out.sum().backward()


def applied(function):
    """Return the kept ``apply`` of a new function, and the list of what its backward gets."""
    seen = []

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            return function(ctx, x, weight)

        @staticmethod
        def backward(ctx, grad):
            seen.extend(ctx.saved_tensors)
            return grad, None

    return Kept.apply, seen


def named_twice(ctx, x, weight):
    ctx.save_for_backward(x)
    ctx.save_for_backward(weight)
    return x * 2


def named_for_forward_too(ctx, x, weight):
    ctx.save_for_backward(weight)
    ctx.save_for_forward(x)
    return x * 2


def named_before_another_saves(ctx, x, weight):
    ctx.save_for_backward(weight)
    with torch.enable_grad():
        return product(x.detach().requires_grad_(), weight).detach()


@pytest.mark.parametrize(
    "function",
    [named_twice, named_for_forward_too, named_before_another_saves],
    ids=lambda f: f.__name__,
)
def test_however_a_function_names_its_tensors_it_gets_them_and_the_hooks_come_back(function):
    apply, seen = applied(function)
    with watching() as observer:
        model = net()
        hidden = model(X)
        weight = model[2].weight[:, :3]
        out = apply(hidden, weight)
        assert not no_hooks()
        saved = {row["addr"] for row in observer.facts({})["saved"]}
        out.sum().backward()
    assert seen[0] is weight
    assert addr(weight) in saved
    assert no_hooks()


def test_what_a_function_names_where_no_gradient_is_wanted_is_not_saved():
    with watching() as observer:
        model = net()
        model(X)
        x = torch.ones(5, 3)
        with torch.no_grad():
            product(x, model[2].weight)
        assert not no_hooks()
        assert addr(x) not in {row["addr"] for row in observer.facts({})["saved"]}


def test_a_function_that_fails_leaves_no_hooks_behind():
    def fails(ctx, x, weight):
        ctx.save_for_backward(x)
        raise ValueError

    apply, _ = applied(fails)
    with watching():
        model = net()
        hidden = model(X)
        try:
            apply(hidden, hidden)
        except ValueError as error:
            failure = error  # and with it the context
        hidden.sum().backward()
        del failure
        gc.collect()
        assert no_hooks()
        model(X)
        assert not no_hooks()
    assert no_hooks()


def test_a_context_of_the_programs_own_is_left_as_it_is():
    class Context(torch.autograd.function.FunctionCtx):
        pass

    with watching():
        net()(X)
        context = Context()
        Product.forward(context, X, X.t())
        assert not no_hooks()
    assert vars(context).keys() == {"to_save"}


def test_a_checkpoint_computes_again_from_the_very_tensors_that_it_was_given():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))
            self.weights_seen = []

        def product(self, x, weight):
            self.weights_seen.append(weight)
            return (x @ weight).sin()

        def forward(self, x):
            return checkpoint(self.product, x, self.weight, use_reentrant=False)

    model = Head()
    with watching(model=model):
        model(X.clone().requires_grad_()).sum().backward()
    # An attribute of the parameter, such as DeepSpeed's, is there the second time too.
    assert len(model.weights_seen) == 2
    assert all(weight is model.weight for weight in model.weights_seen)
