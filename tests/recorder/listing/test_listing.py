"""``snapconv params`` writes what torch says of a model, which it builds without memory."""

import sys

import pytest

from snapconv.cli.app import main
from snapconv.snapshot.recorded.params_file import load_params

pytestmark = pytest.mark.smoke("names")

MODEL = """\
print("something to read")
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.tril(torch.ones(7, 7)), persistent=False)

class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Attention(width) for _ in range(3))
        self.norm = nn.BatchNorm1d(width).requires_grad_(False)
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.embedding.weight

class NeedsValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.ModuleList(nn.Dropout(p.item()) for p in torch.linspace(0, 1, 3))
        self.head = nn.Linear(2, 2)

def huge():
    return Net(1 << 24)

class Makers:
    tiny = lambda: nn.Linear(1, 1)

not_callable = 3
def no_module(): return [1]
def broken(): return Net("wide")
def leaves(): raise SystemExit(3)
def lazy(): return nn.LazyLinear(3)
"""
PROVIDERS = """
def skyline_model_provider():
    device = torch.device("cuda", 1)
    return Net().half().cuda().to(device).to("cuda:0", torch.bfloat16)
def skyline_input_provider(batch_size=2): return (torch.zeros(batch_size, device="cuda"),)
def skyline_iteration_provider(model): return lambda x: None
"""


@pytest.fixture
def params(tmp_path, monkeypatch, capfd):
    """Write model.py and providers.py, and run the command; its exit code, output and complaints."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "providers.py").write_text(MODEL + PROVIDERS)
    known, path = set(sys.modules), sys.path[:]

    def run(*arguments):
        capfd.readouterr()
        code = main(["params", *arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    yield run
    assert sys.path == path
    for name in {"model", "providers"} & (set(sys.modules) - known):
        del sys.modules[name]


def listed(params, tmp_path, *arguments):
    code, out, err = params(*arguments)
    assert code == 0, err
    path = tmp_path / "list.json"
    path.write_text(out)
    return load_params(path)


def torchs_own():
    """The model as torch itself builds it, on the CPU."""
    import torch

    space = {"__name__": "model"}
    exec(MODEL.replace("print", "str"), space)
    return torch, space["Net"]()


def test_the_list_has_what_named_parameters_has_in_its_order(params, tmp_path):
    _, model = torchs_own()
    found = listed(params, tmp_path, "model.py:Net")
    is_own = ~found.is_buffer & ~found.is_tied
    expected = list(model.named_parameters())
    assert [name for name, own in zip(found.names, is_own, strict=True) if own] == [n for n, _ in expected]
    assert found.n_bytes[is_own].tolist() == [p.numel() * p.element_size() for _, p in expected]
    assert found.requires_grad[is_own].tolist() == [p.requires_grad for _, p in expected]
    assert found.is_ordered


def test_the_list_has_all_buffers_those_too_that_are_not_saved(params, tmp_path):
    _, model = torchs_own()
    found = listed(params, tmp_path, "model.py:Net")
    expected = dict(model.named_buffers())
    assert "blocks.0.mask" in expected
    sizes = dict(zip(found.names, found.n_bytes.tolist(), strict=True))
    assert [name for name, is_buffer in zip(found.names, found.is_buffer, strict=True) if is_buffer] == list(
        expected
    )
    for name, buffer in expected.items():
        assert sizes[name] == buffer.numel() * buffer.element_size()


def test_a_second_name_of_a_tensor_is_tied_to_the_first(params, tmp_path):
    found = listed(params, tmp_path, "model.py:Net")
    assert [name for name, tied in zip(found.names, found.is_tied, strict=True) if tied] == ["head.weight"]


def test_providers_that_name_cuda_devices_need_no_cuda_and_what_they_convert_is_converted(params, tmp_path):
    found = listed(params, tmp_path, "providers.py")
    sizes = dict(zip(found.names, found.n_bytes.tolist(), strict=True))
    assert sizes["embedding.weight"] == 2 * 100 * 16
    # num_batches_tracked is an int64, which half() leaves alone.
    assert sizes["norm.num_batches_tracked"] == 8


def test_a_model_larger_than_any_memory_is_listed(params, tmp_path):
    found = listed(params, tmp_path, "model.py:huge")
    sizes = dict(zip(found.names, found.n_elements.tolist(), strict=True))
    assert sizes["embedding.weight"] == 100 << 24


@pytest.mark.parametrize("source", ["model:Net", "model.py:Makers.tiny"])
def test_a_module_and_a_name_within_a_name_are_found(params, tmp_path, source):
    assert len(listed(params, tmp_path, source)) >= 2


def test_what_the_program_prints_is_not_in_the_list(params):
    code, out, err = params("model.py:Net")
    assert code == 0
    assert "something to read" in err
    assert out.startswith('{"version":1,')
    assert '"model":"Net"' in out


def test_a_model_that_needs_values_says_so_and_is_built_on_the_cpu(params, tmp_path):
    code, out, err = params("model.py:NeedsValues")
    assert (code, out) == (6, "")
    line = MODEL[: MODEL.index("p.item()")].count("\n") + 1
    assert f"model.py, line {line}" in err
    assert "give --on-cpu" in err
    assert listed(params, tmp_path, "--on-cpu", "model.py:NeedsValues").names == ("head.weight", "head.bias")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("model.py", "model.py has no model provider"),
        ("model.py:Nothing", "Nothing is not there"),
        ("model.py:not_callable", "not_callable is a int"),
        ("model.py:no_module", "no_module returned a list; expected a torch.nn.Module"),
        ("model.py:broken", "no model was built: TypeError"),
        ("model.py:leaves", "no model was built: SystemExit: 3"),
        ("model.py:lazy", "weight is lazy"),
        ("absent.py:Net", "there is no entry file absent.py"),
        ("absent_module:Net", "No module named 'absent_module'"),
    ],
)
def test_what_gives_no_model_is_told_without_a_traceback(params, source, complaint):
    code, out, err = params(source)
    assert (code, out) == (6, "")
    assert complaint in err
    assert "Traceback" not in err


def test_a_script_is_told_to_name_its_model(params):
    _, _, err = params("model.py")
    assert "snapconv params model.py:NAME" in err


def test_the_list_is_written_whole_and_replaces_nothing_unasked(params, tmp_path):
    # One embedding and its second name, three tensors in each of three blocks, five of the norm.
    code, out, err = params("model.py:Net", "-o", "list.json")
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == "16 tensors of Net: list.json"
    before = (tmp_path / "list.json").read_bytes()
    assert load_params(tmp_path / "list.json").names[0] == "embedding.weight"
    code, _, err = params("model.py:huge", "-o", "list.json")
    assert (code, (tmp_path / "list.json").read_bytes()) == (5, before)
    assert "something to read" not in err
    assert params("model.py:huge", "-o", "list.json", "--force", "-q")[0] == 0
    assert (tmp_path / "list.json").read_bytes() != before


def test_torch_is_as_before_afterwards(params):
    torch, _ = torchs_own()
    params("model.py:Net")
    params("model.py:broken")
    assert torch.zeros(1).device.type == "cpu"
    assert torch.nn.Linear(1, 1).to("meta").weight.device.type == "meta"
