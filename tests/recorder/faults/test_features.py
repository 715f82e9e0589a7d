"""A torch that has changed: what has is left out, with a note that names it, and the rest is recorded."""

import ast
import importlib
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from snapconv.cli.app import main  # noqa: E402
from snapconv.errors import RecorderError  # noqa: E402
from snapconv.guest import torch_surface  # noqa: E402
from snapconv.guest.torch_surface import (  # noqa: E402
    ESSENTIAL,
    SURFACE,
    Attributes,
    Feature,
    missing,
    probe,
)

PACKAGE = Path(torch_surface.__file__).parents[1]
PARTS = [PACKAGE / name for name in ("guest", "recorder", "simulation")]
# Jobs of several ranks are refused where one is requested, and not noted elsewhere.
REFUSED = {*ESSENTIAL, Feature.SIMULATED_JOBS}
OPTIONAL = [feature for feature in SURFACE if feature not in REFUSED]


def without(monkeypatch, feature):
    """Let a feature need something that no torch has."""
    nowhere = Attributes("torch.autograd", ("nowhere",))
    monkeypatch.setitem(SURFACE, feature, (*SURFACE[feature], nowhere))


@pytest.mark.smoke("recording")
def test_this_torch_is_as_the_table_has_it():
    importlib.import_module("torch.distributed.fsdp")
    rows = [row for feature in {*SURFACE} - {Feature.OUT_OF_MEMORY} for row in SURFACE[feature]]
    assert list(missing(rows)) == []


@pytest.mark.alone
def test_the_comparison_takes_less_than_50_ms():
    def seconds():
        began = time.process_time()
        probe(is_for_simulation=True)
        return time.process_time() - began

    assert min(seconds() for _ in range(5)) < 0.05


@pytest.mark.parametrize("number", range(6))
def test_what_has_changed_is_left_out_and_the_rest_recorded(run, monkeypatch, number):
    changed = OPTIONAL[number::6]  # neighbours work together: they are not left out at once
    for feature in changed:
        without(monkeypatch, feature)
    run = run("train(4); print('the end')")
    assert (run.code, run.out) == (0, "the end\n"), run.err
    noted = [note["message"] for note in run.metadata["notes"] if note["slug"] == "torch-changed"]
    assert len(noted) == len(changed)
    for feature in changed:
        what = f"{feature.value} are not {'simulated' if feature.is_of_simulation else 'recorded'}"
        said = f"torch {torch.__version__}: {what}: torch.autograd.nowhere is not there"
        assert f"note: {said}\n" in run.err
        assert said in noted
    assert main(["to-sqlite", "train.capture"]) == 0
    assert "Traceback" not in run.err


def test_other_captures_have_no_such_note(run):
    assert "torch-changed" not in {note["slug"] for note in run("train(4)").metadata["notes"]}


def test_without_the_devices_a_simulation_is_refused_before_the_script(run, monkeypatch):
    without(monkeypatch, Feature.SIMULATION)
    run = run("print('it ran')")
    assert (run.code, run.out) == (6, "")
    assert (
        f"error: torch {torch.__version__}: CUDA devices are not simulated: torch.autograd.nowhere"
        in run.err
    )


@pytest.mark.parametrize("version", ["2.5.1+cu121", "1.13.1"])
def test_a_torch_that_is_too_old_is_refused(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(
        RecorderError, match=r"torch \S+ is too old to record with: use torch 2\.\d+ or newer"
    ):
        probe(is_for_simulation=False)


def test_without_the_history_there_is_nothing_to_record(monkeypatch):
    without(monkeypatch, Feature.MEMORY)
    with pytest.raises(
        RecorderError, match=r"allocations are not recorded: torch\.autograd\.nowhere is not there"
    ):
        probe(is_for_simulation=False)


def test_what_may_be_missing_is_no_difference(monkeypatch):
    monkeypatch.setattr(torch, "Holder", SimpleNamespace(value=3), raising=False)
    row = Attributes("torch.Holder", ("value", "lost"), optional=("gone",))
    assert list(missing([row])) == ["torch.Holder.lost"]


# --- the table is complete

# What has such a name and is not torch's: Python's own, of other libraries, and of what torch
# makes.
NOT_OF_TORCH = {
    "_getframe", "_bootstrap_inner", "_get_module_details",
    "_torchdynamo_orig_callable", "_torchdynamo_orig_backend", "_orig_mod", "_schema", "_untyped_storage",
    "_exit", "_to_copy", "_forward_cls", "_local_tensor", "_init_fn",
    "save_file", "load_file", "safe_open", "open", "_use_fd_functions", "_normal_accessor", "showwarning",
}  # fmt: skip
# Answers that the simulation adds, where torch has none to compare with.
ADDED = {"_set_sequence_number_for_group", "_get_sequence_number_for_group", "default_capture_stream"} | {
    "split", "perform_nocolor_split"
}  # fmt: skip
# Of instances: found by trying them, as a class does not have them.
OF_INSTANCES = {"_parameters", "_buffers", "_modules"}
# Operations of torch.ops, which a simulation looks up by name and does without.
OPERATIONS = ("_scaled_dot_product_", "_c10d_functional")


def trees():
    for path in sorted(path for part in PARTS for path in part.rglob("*.py")):
        if path.name != "torch_surface.py":
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def own_names():
    """What the recorder itself defines."""
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def table():
    return {
        part
        for rows in SURFACE.values()
        for row in rows
        for part in (*row.owner.split("."), *row.required, *row.optional)
    }


# What replaces an attribute, and what looks for one that may be missing.
REPLACES, LOOKS = ("set", "set_existing", "wrap", "replaced"), ("getattr", "hasattr", "setattr")


def names_used():
    """Private attributes of anything, by name or by a text, and all that is replaced."""
    for path, tree in trees():
        for node in ast.walk(tree):
            found, replaced = [], []
            if isinstance(node, ast.Attribute):
                found = [node.attr]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
                found = [
                    text for text in texts if isinstance(text, str) and name in REPLACES + LOOKS
                ]
                replaced = found if name in REPLACES and len(node.args) >= 2 else []
            private = [name for name in found if name.startswith("_") and not name.startswith("__")]
            yield from ((name, path.name) for name in (*private, *replaced))


def test_everything_that_is_private_or_replaced_stands_in_the_table():
    allowed = table() | set(own_names()) | NOT_OF_TORCH | OF_INSTANCES | ADDED
    found = dict(names_used())
    assert len(found) > 70
    unknown = {n: p for n, p in found.items() if n not in allowed and not n.startswith(OPERATIONS)}
    assert unknown == {}


def test_every_instance_of_a_module_has_what_is_used_of_it():
    module = torch.nn.Linear(1, 1)
    assert all(isinstance(getattr(module, name), dict) for name in OF_INSTANCES)


def test_no_name_stands_twice_in_a_feature():
    for feature, rows in SURFACE.items():
        listed = [(row.owner, name) for row in rows for name in (*row.required, *row.optional)]
        assert len(set(listed)) == len(listed), feature


@pytest.mark.parametrize("has_module", [False, True])
def test_what_stands_in_for_a_library_needs_no_version_and_none_is_not_imported(
    monkeypatch, has_module
):
    """A program may forbid the import of a library with None, or put an empty module there."""
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed") if has_module else None)
    names = list(missing(SURFACE[Feature.ZERO_SHARDED]))
    assert bool(names) == has_module
    notes = torch_surface.changed_notes({Feature.ZERO_SHARDED: "deepspeed.runtime"})
    assert notes[0].message.startswith("deepspeed of unknown version: ")
