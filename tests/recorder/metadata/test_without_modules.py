"""What is trained, kept or copied though no module of a model holds it."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there

from snapconv.recorder.observe import memory_records  # noqa: E402
from tests.recorder.metadata.watching import addr, train, watching  # noqa: E402

pytestmark = pytest.mark.smoke("metadata")


def places(rows):
    return {(row["addr"], row["bytes"]) for row in rows}


def where(*tensors):
    return {(addr(tensor), tensor.numel() * tensor.element_size()) for tensor in tensors}


def loss_of(model):
    return model(torch.ones(2, 4, dtype=model.weight.dtype)).square().sum()


def test_weights_in_full_precision_are_parameters_of_their_optimizer_with_gradients_and_states():
    """As mixed precision was done before autocast: the optimizer has copies, and steps those."""
    with watching() as observer:
        model = nn.Linear(4, 3).bfloat16()
        masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
        observer.iteration_began(0)
        loss_of(model).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        gradients = where(*(master.grad for master in masters))
        observer.iteration_ended(0)
        facts = observer.facts({})
    names = [row["name"] for row in facts["parameters"]]
    assert names == ["weight", "bias", "SGD.0.0", "SGD.0.1"]
    assert places(facts["parameters"][2:]) == where(*masters)
    owners = {(row["addr"], row["bytes"]): names[row["parameter"]] for row in facts["gradients"]}
    assert gradients < set(owners)
    assert [
        owners[place] for place in sorted(gradients, reverse=True, key=lambda place: place[1])
    ] == names[2:]
    assert {names[row["parameter"]] for row in facts["optimizer_states"]} == {"SGD.0.0", "SGD.0.1"}


def test_what_an_optimizer_steps_in_place_of_the_models_own_memory_is_no_second_parameter():
    with watching() as observer:
        model = nn.Linear(4, 3)
        views = [p.detach().requires_grad_() for p in model.parameters()]
        torch.optim.SGD(views, lr=0.1)
        observer.note_now()
        assert [row["name"] for row in observer.facts({})["parameters"]] == ["weight", "bias"]


def test_groups_that_are_added_later_are_seen():
    with watching() as observer:
        first, second = torch.ones(3, requires_grad=True), torch.ones(5, requires_grad=True)
        optimizer = torch.optim.SGD([first], lr=0.1)
        observer.note_now()
        optimizer.add_param_group({"params": [second]})
        observer.note_now()
        rows = observer.facts({})["parameters"]
    assert [(row["name"], row["addr"]) for row in rows] == [
        ("SGD.0.0", addr(first)),
        ("SGD.1.0", addr(second)),
    ]


class Climbing(torch.optim.Optimizer):
    """Keeps a state of its own and lets another step, as sharpness-aware minimisation does."""

    def __init__(self, params, base):
        super().__init__(params, {})
        self.base = base(self.param_groups)

    def first_step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["climbed"] = p.grad * 0.1


def test_states_of_an_optimizer_that_never_steps_itself_are_noted_when_the_iteration_ends():
    with watching() as observer:
        model = nn.Linear(4, 3)
        optimizer = Climbing(model.parameters(), lambda groups: torch.optim.SGD(groups, lr=0.1))
        observer.iteration_began(0)
        loss_of(model).backward()
        optimizer.first_step()
        optimizer.base.step()
        observer.iteration_ended(0)
        rows = observer.facts({})["optimizer_states"]
        kept = where(*(state["climbed"] for state in optimizer.state.values()))
    assert places(rows) == kept
    assert [row["state"] for row in rows] == ["climbed"] * 2


def test_a_state_that_is_made_anew_gives_a_note_where_it_was_too():
    with watching() as observer:
        model = nn.Linear(4, 3)
        optimizer = Climbing([model.weight], lambda groups: torch.optim.SGD(groups, lr=0.1))
        kept = []
        for number in range(3):
            observer.iteration_began(number)
            loss_of(model).backward()
            optimizer.first_step()
            kept.append(optimizer.state[model.weight]["climbed"])
            observer.iteration_ended(number)
        rows = observer.facts({})["optimizer_states"]
    assert [row["addr"] for row in rows] == [addr(state) for state in kept]


def test_an_optimizer_is_not_kept_alive():
    import weakref

    with watching():
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        reference = weakref.ref(optimizer)
        del optimizer
        assert reference() is None


def test_an_input_that_is_differentiated_for_is_no_parameter_and_its_gradient_is_one():
    with watching() as observer:
        model = nn.Linear(4, 3)
        for number in range(3):
            observer.iteration_began(number)
            x = torch.ones(2, 4, requires_grad=True)
            (model(x) * 2).sum().backward()
            observer.iteration_ended(number)
        facts = observer.facts({})
    assert [row["name"] for row in facts["parameters"]] == ["weight", "bias"]
    assert (facts["gradients"][-1]["addr"], facts["gradients"][-1]["parameter"]) == (
        addr(x.grad),
        None,
    )


def test_graphs_are_walked_through_in_two_iterations_and_no_more(monkeypatch):
    """Of two backward passes each."""
    walk, walked = memory_records.graph_nodes, []
    monkeypatch.setattr(
        memory_records, "graph_nodes", lambda roots: walked.append(1) or walk(roots)
    )
    w = torch.ones(2, requires_grad=True)
    with watching() as observer:
        for number in range(5):
            observer.iteration_began(number)
            for _ in range(2):
                (w * 2).sum().backward()
            observer.iteration_ended(number)
    assert len(walked) == 4


def test_a_copied_model_is_a_model():
    with watching() as observer:
        model = nn.Sequential(nn.Linear(4, 3))
        average = copy.deepcopy(model)
        observer.note_now()
        rows = observer.facts({})["parameters"]
    assert [row["name"] for row in rows] == [
        "Sequential.0.weight", "Sequential.0.bias", "Sequential#2.0.weight", "Sequential#2.0.bias",
    ]  # fmt: skip
    assert places(rows[2:]) == where(*average.parameters())


def test_an_averaged_model_and_layers_that_torch_copies_have_parameters_of_their_own():
    with watching() as observer:
        layer = nn.TransformerEncoderLayer(4, 1, dim_feedforward=4, batch_first=True)
        model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        average = torch.optim.swa_utils.AveragedModel(model)
        observer.note_now()
        rows = [row for row in observer.facts({})["parameters"] if row["kind"] == "parameter"]
    found = {row["name"]: (row["addr"], row["bytes"]) for row in rows}
    for prefix, owner in ("TransformerEncoder.", model), ("AveragedModel.", average):
        for name, parameter in owner.named_parameters():
            assert {found[prefix + name]} == where(parameter)


def test_copies_of_a_state_dict_are_noted_with_their_originals():
    with watching() as observer:
        model = nn.Linear(4, 3)
        best = copy.deepcopy(model.state_dict())
        rows = observer.facts({})["copies"]
    assert places(rows) == where(*best.values())
    assert {row["original"] for row in rows} == {addr(p) for p in model.parameters()}


def test_copying_gives_what_it_gives_without_us():
    with watching():
        model = nn.Linear(4, 3)
        again, states = copy.deepcopy((model, model.weight))
        assert again.weight is states
        assert torch.equal(again.weight, model.weight)
        assert again.weight.requires_grad


def test_of_what_is_saved_it_is_known_whether_it_has_a_history():
    with watching() as observer:
        model = nn.Linear(4, 3)
        x, wanted = torch.ones(2, 4), torch.tensor([0, 2])
        logits = model(x)
        nn.functional.cross_entropy(logits, wanted).backward()
        rows = observer.facts({})["saved"]
    is_given = {row["addr"]: row["without_history"] for row in rows}
    assert is_given[addr(wanted)]
    assert is_given[addr(x)]
    assert not any(row["without_history"] for row in rows if row["bytes"] == 2 * 3 * 4)


def test_training_goes_on_as_ever_while_leaves_are_looked_for():
    def weights(watched):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        train(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1), 3, watched)
        return [p.tolist() for p in model.parameters()]

    with watching() as observer:
        seen = weights(observer)
    assert seen == weights(None)


class Cached(nn.Module):
    """Holds a table and caches, none of them registered."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.table = torch.ones(16)
        self.caches = {"keys": [torch.zeros(2, 32)]}

    def forward(self, x):
        self.caches["keys"][0][0, :4] = x
        return x


def test_tensors_that_a_module_holds_as_attributes_are_noted_and_whether_they_were_written():
    with watching() as observer:
        model = nn.Sequential(Cached())
        observer.iteration_began(0)
        model(torch.ones(4))
        observer.iteration_ended(0)
        rows = {row["name"]: row for row in observer.facts({})["attributes"]}
    assert {name: (row["module"], row["written"]) for name, row in rows.items()} == {
        "table": ("0", False),
        "caches.keys.0": ("0", True),
    }
    assert rows["caches.keys.0"]["addr"] == addr(model[0].caches["keys"][0])


def test_attributes_made_in_inference_mode_count_no_versions_and_are_noted_all_the_same():
    with watching() as observer:
        with torch.inference_mode():
            model = nn.Sequential(Cached())
            model(torch.ones(4))
            observer.note_now()
        assert len(observer.facts({})["attributes"]) == 2


class Buffered(nn.Module):
    """A buffer that every call writes to, and one that nothing writes to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 4))
        self.register_buffer("table", torch.ones(4))

    def forward(self, x):
        self.keys[0] = x
        return x * self.table


def test_buffers_are_noted_as_written_once_calls_wrote_to_them_again_and_again():
    def written(observer):
        observer.note_now()
        return {row["name"]: row["written"] for row in observer.facts({})["parameters"]}

    with watching() as observer, torch.no_grad():
        model = nn.Sequential(Buffered())
        assert written(observer) == {"0.keys": False, "0.table": False}
        model(torch.ones(4))
        assert not written(observer)["0.keys"]
        model(torch.ones(4))
        assert written(observer) == {"0.keys": True, "0.table": False}


def test_models_without_parameters_are_looked_at_once_in_an_iteration(monkeypatch):
    """A loss function is called many times, and a look at all modules takes time."""
    iterations = []
    monkeypatch.setattr(
        memory_records.MemoryRecords,
        "parameters",
        lambda _self: (observer._models.slots(), iterations.append(observer._iteration)),
    )
    with watching() as observer:
        activation = nn.ReLU()
        for iteration in range(2):
            observer.iteration_began(iteration)
            for _ in range(5):
                activation(torch.ones(2))
        assert iterations == [0, 1]
