"""What the observer notes of models as people write them; addresses are those of the tensors themselves."""

import re
from math import prod

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there

from scripts.docs import catalogs  # noqa: E402
from snapconv.guest import locations  # noqa: E402
from tests.recorder.metadata.watching import addr, train, watching  # noqa: E402

pytestmark = pytest.mark.smoke("metadata")


class Net(nn.Module):
    """Tied and frozen weights, a batch norm's buffers, a shared module."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.norm = nn.BatchNorm1d(8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.body[0].weight.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.body(self.norm(self.embedding(tokens))))


TOKENS = torch.arange(6)


def loss_of(model):
    return nn.functional.cross_entropy(model(TOKENS), TOKENS)


def watch_training(optimizer=torch.optim.Adam, n_steps=2):
    with watching() as observer:
        model = Net()
        optimizer = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.1)
        train(model, loss_of, optimizer, n_steps, observer)
        return model, optimizer, observer.facts({})


def test_every_parameter_and_buffer_is_named_as_torch_names_it():
    model, _, facts = watch_training()
    rows = facts["parameters"]
    named = [row["name"] for row in rows if row["kind"] == "parameter"]
    assert named == [name for name, _ in model.named_parameters()]
    assert {row["name"] for row in rows if row["kind"] == "buffer"} == {
        n for n, _ in model.named_buffers()
    }


def test_a_parameters_row_says_all_of_it():
    model, _, facts = watch_training()
    row = next(row for row in facts["parameters"] if row["name"] == "body.2.weight")
    assert row["addr"] == addr(model.body[2].weight)
    frames = row.pop("frames")
    times = row.pop("noted_us")
    assert row == {
        "name": "body.2.weight", "kind": "parameter", "module": "body.2", "shape": [8, 8],
        "dtype": "float32", "device": 0, "addr": addr(model.body[2].weight), "bytes": 8 * 8 * 4,
    }  # fmt: skip
    assert times > 1_700_000_000_000_000
    assert all(
        type(frame["line"]) is int and set(frame) == {"filename", "line", "name"}
        for frame in frames
    )


def test_the_stack_of_a_parameter_leads_to_the_line_that_made_its_module():
    _, _, facts = watch_training()
    row = next(row for row in facts["parameters"] if row["name"] == "norm.weight")
    mine = [frame for frame in row["frames"] if frame["filename"] == __file__]
    assert [frame["name"] for frame in mine][:2] == ["__init__", "watch_training"]
    line = Net.__init__.__code__.co_firstlineno + 3
    assert mine[0]["line"] == line
    assert not any(
        re.search("snapconv/(guest|recorder)", frame["filename"]) for frame in row["frames"]
    )


def test_a_weight_of_several_tensors_has_a_row_for_each():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    parts = torch.randn(8, 8), torch.randn(8, 8)
    with watching() as observer:
        model = nn.Linear(8, 8)
        model.weight = nn.Parameter(two_tensor(*parts))
        optimizer = torch.optim.SGD(model.parameters())
        train(model, lambda model: model(torch.ones(2, 8)).sum(), optimizer)
        facts = observer.facts({})
    rows = facts["parameters"]
    assert [(row["name"], row["addr"]) for row in rows] == [
        *(("weight", addr(part)) for part in parts),
        ("bias", addr(model.bias)),
    ]
    # A gradient belongs to the weight's first part.
    assert {row["parameter"] for row in facts["gradients"]} == {0, 2}


def test_tied_weights_are_one_row_with_the_stack_of_the_first_registration():
    _, _, facts = watch_training()
    names = [row["name"] for row in facts["parameters"]]
    assert "head.weight" not in names
    row = facts["parameters"][names.index("embedding.weight")]
    lines = [frame["line"] for frame in row["frames"] if frame["filename"] == __file__]
    assert lines[0] == Net.__init__.__code__.co_firstlineno + 2


def test_every_trainable_parameter_has_one_gradient_per_iteration():
    model, _, facts = watch_training(n_steps=3)
    names = [row["name"] for row in facts["parameters"]]
    found = sorted(
        (row["iteration"], names[row["parameter"]], row["bytes"]) for row in facts["gradients"]
    )
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    per_parameter = sorted((i, n, prod(p.shape) * 4) for i in range(3) for n, p in trainable)
    # Freed and made anew in every step, a gradient may also be recorded at a second address of one
    # iteration.
    assert sorted(set(found)) == per_parameter
    last = {row["addr"] for row in facts["gradients"] if row["iteration"] == 2}
    assert last >= {addr(p.grad) for _, p in trainable}


def test_adam_has_every_trainable_parameter_twice():
    model, optimizer, facts = watch_training()
    names = [row["name"] for row in facts["parameters"]]
    rows = [row for row in facts["optimizer_states"] if row["state"] != "step"]
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert {(names[row["parameter"]], row["state"]) for row in rows} == {
        (name, state) for name in trainable for state in ("exp_avg", "exp_avg_sq")
    }
    for row in rows:
        state = optimizer.state[trainable[names[row["parameter"]]]][row["state"]]
        assert (row["addr"], row["bytes"]) == (addr(state), state.numel() * 4)


@pytest.mark.filterwarnings(
    "ignore:Converting a tensor:UserWarning"
)  # by LBFGS of torch 2.8 itself
def test_states_in_lists_are_noted_too():
    with watching() as observer:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        facts = observer.facts({})
    states = {row["state"] for row in facts["optimizer_states"]}
    assert {"d", "old_dirs.0"} <= states
    phases = [row["phase"] for row in facts["phases"]]
    assert phases[:4] == ["optimizer", "forward", "backward", "optimizer"]


def test_where_a_parameter_lay_before_gives_a_note_too():
    """An average that a program makes anew in every iteration."""
    with watching() as observer:
        model, held = nn.Linear(3, 3), []
        for iteration in range(3):
            observer.iteration_began(iteration)
            model(torch.ones(2, 3))
            held.append(model.weight.data)
            observer.iteration_ended(iteration)
            model.weight.data = model.weight.data * 0.5
        facts = observer.facts({})
    assert [
        facts["parameters"][row["parameter"]]["name"] for row in facts["earlier_parameters"]
    ] == ["weight"] * 2
    assert [row["addr"] for row in facts["earlier_parameters"]] == [
        addr(tensor) for tensor in held[:2]
    ]
    assert [row["addr"] for row in facts["parameters"] if row["name"] == "weight"] == [
        addr(held[2])
    ]


def test_inputs_are_the_tensors_of_the_outermost_call_by_position_and_by_keyword():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x, *, batch):
            return self.layer(x) + batch["bias"]

    x, bias = torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.float64)
    with watching() as observer:
        Model()(x, batch={"bias": bias})
        facts = observer.facts({})
    assert [(row["addr"], row["shape"], row["dtype"]) for row in facts["inputs"]] == [
        (addr(x), [2, 3], "float32"), (addr(bias), [2, 3], "float64"),
    ]  # fmt: skip


def test_a_result_handed_to_a_criterion_is_no_input():
    with watching() as observer:
        model, criterion = nn.Linear(3, 3), nn.MSELoss()
        x, target = torch.ones(2, 3), torch.zeros(2, 3)
        criterion(model(x), target).backward()
        facts = observer.facts({})
    assert [row["addr"] for row in facts["inputs"]] == [addr(x), addr(target)]


def test_saved_tensors_are_noted_with_the_module_that_saved_them():
    with watching() as observer:
        model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
        out = model(torch.ones(2, 3))
        out.sum().backward()
        facts = observer.facts({})
    saved = {(row["module"], row["addr"]) for row in facts["saved"]}
    assert ("1", addr(out)) in saved


def test_two_models_share_no_names():
    with watching() as observer:
        generator, critic = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
        nn.CrossEntropyLoss()
        critic(generator(torch.ones(1, 2)))
        names = [row["name"] for row in observer.facts({})["parameters"]]
        assert observer.module_path(critic[0]) == "Sequential#2.0"
    assert names == [
        "Sequential.0.weight",
        "Sequential.0.bias",
        "Sequential#2.0.weight",
        "Sequential#2.0.bias",
    ]


def test_a_given_model_is_the_only_one_and_may_be_older_than_the_observer():
    model, other = Net(), nn.Linear(2, 2)
    with watching(model=model) as observer:
        other(torch.ones(1, 2))
        observer.note_now()
        names = {row["name"] for row in observer.facts({})["parameters"]}
    assert names == {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}


def test_states_of_a_given_optimizer_are_noted_before_it_steps():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, lambda m: m(torch.ones(1, 2)).sum(), optimizer)
    with watching(model=model, optimizer=optimizer) as observer:
        observer.note_now()
        assert len(observer.facts({})["optimizer_states"]) == 2


def test_a_wrapper_may_have_other_things_by_the_names_of_torchs_methods():
    """As Megatron's DistributedDataParallel has a list of buffers."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.buffers, self.modules = module, [], []

    with watching() as observer:
        model = Wrapper(Net())
        observer.note_now()
        facts = observer.facts({})
    weights = [row["name"] for row in facts["parameters"] if row["kind"] == "parameter"]
    assert weights == [name for name, _ in model.named_parameters()]


def test_the_path_of_a_module_is_known_after_the_end_too():
    with watching() as observer:
        model, criterion = Net(), nn.MSELoss()
        criterion(torch.ones(1), torch.zeros(1))
    assert observer.module_path(model.body[2]) == "body.2"
    assert observer.module_path(model) == ""
    assert observer.module_path(criterion) is None


def test_a_converted_model_keeps_the_stacks_of_its_parameters():
    with watching() as observer:
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            Net().double()(TOKENS)
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)
        facts = observer.facts({})
    rows = {row["name"]: row for row in facts["parameters"]}
    assert rows["body.2.bias"]["bytes"] == 8 * 8
    assert rows["body.2.bias"]["frames"]


# A DeprecationWarning up to torch 2.13, a FutureWarning since.
@pytest.mark.filterwarnings("ignore:.*jit.* is deprecated")
def test_scripted_models_have_their_names_too():
    with watching() as observer:
        original = nn.Sequential(nn.Linear(2, 2))
        model = torch.jit.script(original)
        model(torch.ones(1, 2)).sum().backward()
        observer.note_now()
        facts = observer.facts({})
        assert observer.module_path(model[0]) == observer.module_path(original[0]) == "0"
        del original, model
    assert [row["name"] for row in facts["parameters"]] == ["0.weight", "0.bias"]
    assert len(facts["gradients"]) == 2


def test_parameters_of_lazy_modules_are_noted_when_they_have_memory():
    with watching() as observer:
        model = nn.Sequential(nn.LazyLinear(3))
        observer.note_now()
        assert observer.facts({})["parameters"] == []
        model(torch.ones(2, 5))
        observer.note_now()
        rows = observer.facts({})["parameters"]
    assert [(row["name"], row["shape"]) for row in rows] == [("0.weight", [3, 5]), ("0.bias", [3])]


def test_a_sparse_gradient_gives_a_note_by_its_values():
    with watching() as observer:
        model = nn.Embedding(100, 4, sparse=True)
        model(torch.tensor([3, 5])).sum().backward()
        rows = observer.facts({})["gradients"]
        values = model.weight.grad._values()
    assert [(row["addr"], row["bytes"]) for row in rows][-1] == (addr(values), 2 * 4 * 4)


def test_a_tensor_without_storage_lies_nowhere():
    found = []

    def look(x):
        found.append(locations.locate(x))
        return x

    torch.func.vmap(look)(torch.ones(2))
    assert found == [None]


def test_the_first_registration_is_that_of_the_tensor_not_that_of_its_place():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 20, bias=False)
            self.embedding = nn.Embedding(20, 8)
            self.head.weight = self.embedding.weight

    with watching() as observer:
        model = Tied()
        observer.note_now()
        [row] = observer.facts({})["parameters"]
    assert [row["name"]] == [name for name, _ in model.named_parameters()]
    assert row["frames"][0]["name"] == "register_parameter"
    lines = [frame["line"] for frame in row["frames"] if frame["filename"] == __file__]
    assert lines[0] == Tied.__init__.__code__.co_firstlineno + 3


def test_every_key_that_is_written_is_described():
    keys = catalogs.capture_keys()
    described = " ".join((*keys.metadata, *keys.rows, *(of_row for _, of_row, _ in keys.rows_of)))
    _, _, facts = watch_training()
    written = set(facts)
    for rows in facts.values():
        if isinstance(rows, list):
            written |= set().union(*rows)
    assert {key for key in written if f"`{key}`" not in described} == set()
