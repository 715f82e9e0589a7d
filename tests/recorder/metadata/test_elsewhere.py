"""Parameters on no device, while the others of their model are on one, are recorded by name."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.simulation import simulated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def observer():
    with simulated():
        observer = Observer()
        observer.start()
        yield observer
        observer.stop()


class Patched(nn.Module):
    """A model to which a layer was added after it had been moved."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.cuda()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.body(x)


def call(model, device="cuda"):
    model(torch.ones(2, 4, device=device))


def test_a_layer_left_on_the_cpu_gives_a_note_by_its_names(observer):
    call(Patched())
    [note] = observer.notes()
    assert note.slug == "parameters-elsewhere"
    assert "of the 4 parameters of Patched" in note.message
    assert "head.weight (on cpu), head.bias (on cpu)" in note.message
    assert "body" not in note.message


def test_where_all_are_together_there_is_nothing_to_note(observer):
    call(nn.Linear(4, 4).cuda())
    call(nn.Linear(4, 4), device="cpu")
    assert observer.notes() == ()


def test_what_is_moved_later_gives_a_note_no_more(observer):
    model = Patched()
    call(model)
    assert observer.notes()
    model.cuda()
    observer.note_now()
    assert observer.notes() == ()


def test_a_layer_on_the_meta_device_gives_a_note(observer):
    model = nn.Sequential(nn.Linear(4, 4).cuda(), nn.Identity())
    model.unused = nn.Linear(4, 4, bias=False, device="meta")
    model.forward = lambda x: model[0](x)
    call(model)
    [note] = observer.notes()
    assert "unused.weight (on meta)" in note.message


def test_of_many_the_first_are_named(observer):
    model = nn.Sequential(nn.Linear(4, 4).cuda(), nn.Identity())
    model.cold = nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
    model.forward = lambda x: model[0](x)
    call(model)
    [note] = observer.notes()
    assert note.message.endswith(
        "cold.0.weight (on cpu), cold.0.bias (on cpu), cold.1.weight (on cpu), 5 more"
    )


def test_a_parameter_without_elements_lies_nowhere_and_is_not_noted(observer):
    model = nn.Linear(4, 4).cuda()
    model.empty = nn.Parameter(torch.empty(0))
    call(model)
    assert observer.notes() == ()


def test_a_lazy_parameter_lies_nowhere_yet_and_is_not_noted(observer):
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2)).cuda()
    model.forward = lambda x: model[0](x)
    call(model)
    assert observer.notes() == ()


def test_a_wrapper_whose_parts_are_on_the_device_is_not_noted(observer):
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    parts = (torch.zeros(4, 4, device="cuda"), torch.zeros(4, 4, device="cuda"))
    model[0].weight = nn.Parameter(two_tensor.TwoTensor(*parts))
    observer.note_now()
    assert observer.notes() == ()


def test_a_wrapper_with_a_part_on_the_cpu_gives_a_note(observer):
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    model[0].weight = nn.Parameter(two_tensor.TwoTensor(torch.zeros(4, 4), torch.zeros(4, 4)))
    observer.note_now()
    [note] = observer.notes()
    assert "0.weight (on cpu)" in note.message
