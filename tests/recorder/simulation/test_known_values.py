"""Where nothing is computed, small masks, indices and counters have their values all the same."""

import copy
import mmap
import re
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.simulation.operations import FakeStorages  # noqa: E402
from tests.recorder.simulation.support import sizes_allocated  # noqa: E402

pytestmark = pytest.mark.smoke("no-compute")


@pytest.fixture
def simulation():
    with simulated(SimulationOptions(compute=False)) as running:
        yield running


def unknown(*shape):
    """A tensor on the device whose values nobody computed: it depends on what is too large."""
    return torch.randn(200, 200, device="cuda").sum() * torch.ones(shape, device="cuda")


def padded_mask():
    mask = torch.ones(4, 64, dtype=torch.long)
    mask[1:, 50:] = 0
    return mask


def note_of(simulation):
    [message] = [note.message for note in simulation.notes() if note.slug == "values-not-computed"]
    return message


def test_a_mask_keeps_its_values_on_the_way_to_the_device_and_through_operations(simulation):
    mask = padded_mask().to("cuda")
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    causal = torch.ones(64, 64, dtype=torch.bool, device="cuda").tril()

    assert not mask.all()
    assert mask[0].bool().all()
    assert mask.sum(-1).tolist() == [64, 50, 50, 50]
    assert positions[1, 49:52].tolist() == [49, 1, 1]
    assert (causal[None] & mask[:, None].bool()).sum().item() == 64 * 65 // 2 + 3 * (
        50 * 51 // 2 + 14 * 50
    )
    assert simulation.notes() == ()


def test_known_values_give_known_shapes(simulation):
    mask = padded_mask().cuda()

    assert mask.nonzero().shape == (64 + 3 * 50, 2)
    assert torch.arange(64, device="cuda")[mask[1].bool()].tolist() == list(range(50))
    assert unknown(4, 64, 100)[mask.bool()].shape == (64 + 3 * 50, 100)
    assert unknown(4, 64).masked_select(mask.bool()).shape == (64 + 3 * 50,)
    assert simulation.notes() == ()


def test_of_a_shape_that_is_not_known_half_is_taken_and_of_distinct_values_all(simulation):
    x = unknown(8, 100)

    assert x[x > 0].shape == (400,)
    assert (x > 0).nonzero().shape == (400, 2)
    assert x[x.isfinite()].shape == (800,)
    assert x[x.isnan()].shape == (0,)
    assert x.unique().shape == (800,)
    assert "(shape of unique())" in note_of(simulation)


def test_one_mask_selects_equally_many_rows_everywhere_and_its_opposite_the_others(simulation):
    x, mask = unknown(100, 8), unknown(100) > 0
    n = int(mask.sum())
    assert {
        len(x[mask]),
        len(x[mask.clone()]),
        len(mask.nonzero()),
        len(mask.tolist()) - len(x[~mask]),
    } == {n}

    among = x[mask].sum(-1) > 0
    mask[mask.clone()] = among
    assert len(x[mask]) == len(torch.where(mask)[0]) == int(among.sum()) < n
    places = unknown(100).topk(3).indices
    mask[places] = True
    assert len(x[mask]) == int(mask.sum())


def test_of_a_tensor_that_only_gives_its_shape_values_are_no_matter(simulation):
    mask = unknown(300, 300).new_zeros((4, 10), dtype=torch.bool)
    mask[:, :3] = True

    assert unknown(4, 10)[mask].shape == (12,)
    assert torch.zeros_like(unknown(3), dtype=torch.long).tolist() == [0, 0, 0]
    assert simulation.notes() == ()


def test_every_read_of_what_was_not_computed_gives_a_note_with_its_line(simulation):
    x = unknown(3)
    for _ in range(3):
        x.sum().item()
    if x.max() > 0:
        raise ValueError("it is not raised")
    x.cpu().tolist()
    x.cpu().numpy()
    f"{x}"

    places = re.findall(
        r"test_known_values\.py:\d+ \((.*?)\)", note_of(simulation).replace("()", "")
    )
    assert places == ["item", "bool taken as False", "tolist", "numpy"]
    assert "and 1 more place;" in note_of(simulation)


def test_a_read_inside_of_a_library_names_the_programs_line_too(simulation, tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "other"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def report(x):\n    return float(x)\n")
    monkeypatch.syspath_prepend(package.parent)
    from other import report  # type: ignore[import-not-found]

    report(unknown())

    assert re.search(
        r"at other/__init__\.py:2 called at \S*test_known_values\.py:\d+ \(float\(\)\);",
        note_of(simulation),
    )


def test_a_counter_is_known_until_something_unknown_goes_in_and_again_when_it_is_set_anew(
    simulation,
):
    total = torch.zeros((), device="cuda")
    steps = torch.zeros((), dtype=torch.long, device="cuda")
    view = total[None]
    total += 2
    steps += 1
    assert (view.item(), steps.item()) == (2, 1)
    assert simulation.notes() == ()

    view += unknown(1)
    assert total.item() == 0
    assert len(simulation.notes()) == 1

    before = note_of(simulation)
    total.fill_(5)
    assert total.item() == 5
    assert note_of(simulation) == before


def test_what_a_cpu_tensor_is_given_by_the_device_is_not_known(simulation):
    buffer = torch.ones(3)
    buffer.copy_(unknown(3))

    assert buffer.tolist() == [0, 0, 0]
    assert "(tolist())" in note_of(simulation)


def test_statistics_that_a_normalisation_writes_without_saying_so_are_not_known(simulation):
    mean = torch.full((8,), 3.0, device="cuda")
    F.batch_norm(unknown(4, 8), mean, torch.ones(8, device="cuda"), training=True)

    mean[0].item()
    assert "(item())" in note_of(simulation)


@pytest.mark.parametrize(
    ("combine", "decided"),
    [
        (lambda known, x: known | x, True),
        (lambda known, x: x | known, True),
        (lambda known, x: torch.logical_or(known, x), True),
        (lambda known, x: ~known & x, False),
        (lambda known, x: torch.logical_and(x, ~known), False),
        (lambda known, x: known.logical_or_(x), True),
    ],
)
def test_one_operand_decides_and_or_or_alone(simulation, combine, decided):
    known, x = torch.ones(4, dtype=torch.bool, device="cuda"), unknown(4) > 0

    assert combine(known, x).tolist() == [decided] * 4
    assert simulation.notes() == ()


def test_an_operand_that_decides_only_a_part_leaves_all_open(simulation):
    known, x = torch.tensor([True, False], device="cuda"), unknown(2) > 0

    (known | x).tolist()
    (~known & x).tolist()
    assert note_of(simulation).count("tolist()") == 2


def assert_modes_agree(step):
    allocated = []
    for compute in (True, False):
        with simulated(SimulationOptions(compute=compute)):
            allocated.append(sizes_allocated(step))
    assert allocated[0] == allocated[1]


def test_both_modes_go_the_way_that_a_mask_decides():
    def step():
        mask, x = padded_mask().cuda(), torch.randn(4, 8, 64, 32, device="cuda", requires_grad=True)
        bias = None if mask.all() else mask[:, None, None].bool().expand(-1, -1, 64, -1)
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=bias)
        for length in mask.sum(-1).tolist():
            y = y + y[:, :, :length].sum()
        y[mask.bool()[:, None].expand(-1, 8, -1)].sum().backward()
        return x

    assert_modes_agree(step)


def test_a_gradient_has_the_layout_that_convolutions_give_it_on_a_gpu_in_both_modes():
    def step():
        weight = torch.randn(8, 8, 3, 3, device="cuda", requires_grad=True)
        x = torch.randn(2, 8, 64, 64, device="cuda", requires_grad=True)
        # The gradient of what is permuted has its channels last.
        (
            F.conv2d(x.sin(), weight, padding=1).permute(0, 2, 3, 1).contiguous() ** 2
        ).sum().backward()
        return weight

    assert_modes_agree(step)


def test_what_only_cuda_has_a_kernel_for_is_computed_in_a_wider_type():
    for compute in (True, False):
        with simulated(SimulationOptions(compute=compute)):
            counts = torch.histc(torch.tensor([0, 1, 1, 3], device="cuda"), bins=4, min=0, max=3)
            assert counts.tolist() == [1, 2, 0, 1]
            assert counts.dtype == torch.int64


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="torch before 2.8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_grouped_product_has_a_shape_in_every_type(simulation, dtype):
    tokens = torch.randn(64, 128, device="cuda", dtype=dtype)
    experts = torch.randn(4, 128, 256, device="cuda", dtype=dtype)
    ends = torch.tensor([16, 32, 48, 64], device="cuda", dtype=torch.int32)

    result = torch._grouped_mm(tokens, experts, offs=ends)
    assert (result.shape, result.dtype) == ((64, 256), dtype)


def test_a_tensor_too_large_for_the_computer_is_an_error_that_says_so(monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError("the paging file is too small")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(
        RecorderError, match=r"cannot reserve 67108864 bytes .* paging file is too small"
    ):
        FakeStorages().storage(1 << 20)


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "no-compute"])
def test_a_deep_copy_leaves_the_counters_of_an_optimizer_on_the_cpu_with_their_values(compute):
    with simulated(SimulationOptions(compute=compute)):
        model = torch.nn.Linear(3, 3).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for n_steps in (1, 2, 3):
            model(torch.ones(2, 3, device="cuda")).sum().backward()
            optimizer.step()
            copied = copy.deepcopy(optimizer.state_dict())
            counters = [
                state["step"]
                for kept in (optimizer.state_dict(), copied)
                for state in kept["state"].values()
            ]
            assert [(counter.device.type, counter.item()) for counter in counters] == [
                ("cpu", n_steps)
            ] * 4


def test_a_kernel_of_triton_is_not_launched_and_what_it_is_given_has_no_values(monkeypatch):
    import torch._dynamo  # it imports triton's own

    class JITFunction:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

        def run(self, *args, **kwargs):
            raise RuntimeError("0 active drivers")

    class Autotuner(JITFunction):
        pass

    runtime = SimpleNamespace(JITFunction=JITFunction, Autotuner=Autotuner, Heuristics=Autotuner)
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    with simulated(SimulationOptions(compute=False)):
        x = torch.arange(8, device="cuda")
        allocated = torch.cuda.memory_allocated()
        for kernel in (JITFunction(), Autotuner()):
            kernel[(4,)](x, n=8)
        assert torch.cuda.memory_allocated() == allocated
        assert x.tolist() == [0] * 8
    with (
        simulated(),
        pytest.raises(RecorderError, match=r"test_known_values.py:\d+: .* --no-compute"),
    ):
        Autotuner()[(4,)](x, n=8)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        JITFunction()[(4,)](x)
