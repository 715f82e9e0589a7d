"""Operations of code that torch.compile wrote, and the lines that reports show for it."""

from pathlib import Path

import pytest

from snapconv.session import load
from tests.builders import MIB, TraceBuilder, frame

REAL = (
    Path(__file__).parents[4]
    / "shared"
    / "snapshots"
    / "bcrafton-assignment2-systems-memory_snapshot.pickle"
)
PACKAGES = "/venv/lib/python3.11/site-packages"
HASH = "c" + "abcdefgh234567" * 3 + "abcdefghi"


def original(function, line):
    return frame(function, "/home/me/project/model.py", line)


def generated(name="call", path=f"/tmp/torchinductor_me/ab/{HASH}.py", **fields):
    return frame(name, path, 90) | fields


def compiled(*originals, code=None, native=(), backward=False):
    """A stack of Inductor's code: torch puts the original lines right behind the generated one."""
    callers = ["backward" if backward else "forward", "main"]
    return [
        *native,
        code or generated(),
        *originals,
        frame("run", f"{PACKAGES}/torch/_inductor/utils.py", 3220),
        frame("__call__", f"{PACKAGES}/torch/_inductor/output_code.py", 638),
        frame(callers[0], f"{PACKAGES}/torch/_functorch/_aot_autograd/runtime_wrappers.py", 2000),
        *([] if backward else [frame("main", "/home/me/project/train.py", 40)]),
    ]


def names(tmp_path, *stacks):
    builder = TraceBuilder().segment(2 * MIB)
    for stack in stacks:
        builder.alloc(512, frames=stack)
    path = builder.alloc(512, frames=[frame("<module>", "/home/me/project/train.py", 50)]).write(
        tmp_path / "snapshot.pickle"
    )
    (device,) = load(path).devices
    return [device.operations[number] for number in device.operation_id.tolist()][:-1]


def test_generated_code_alone_shows_that_it_is_compiled(tmp_path):
    stacks = (
        compiled(original("forward", 5)),
        compiled(),
        compiled(original("forward", 5), backward=True),
    )
    assert names(tmp_path, *stacks) == ["compiled"] * 3


def test_a_kernel_that_is_called_as_it_is_has_its_name(tmp_path):
    native = [{"name": "at::_ops::addmm_out::call(at::Tensor const&)", "filename": "??", "line": 0}]
    assert names(tmp_path, compiled(original("forward", 5), native=native)) == ["linear"]


def test_the_module_of_torch_is_shown(tmp_path):
    linear = frame("forward", f"{PACKAGES}/torch/nn/modules/linear.py", 125)
    assert names(tmp_path, compiled(linear, original("forward", 5))) == ["linear"]


def test_code_in_another_cache_folder_is_known_by_its_name(tmp_path):
    code = generated(path=f"/home/me/project/cache/ab/{HASH}.py")
    assert len(HASH) == 52
    assert names(tmp_path, compiled(original("forward", 5), code=code)) == ["compiled"]


def test_the_line_that_is_shown_is_that_of_the_model(tmp_path):
    builder = TraceBuilder().segment(2 * MIB).alloc(512, frames=compiled(original("forward", 5)))
    path = builder.write(tmp_path / "snapshot.pickle")
    explained = load(path).explain("#1").allocations[0]
    mine = [
        (shown["file"], shown["line"])
        for shown in explained["origin"]["stack"]
        if shown["is_project"]
    ]
    assert mine == [("model.py", 5), ("train.py", 40)]


@pytest.mark.skipif(not REAL.exists(), reason="the real snapshots are not beside this checkout")
def test_compiled_code_of_a_real_snapshot_has_the_lines_of_its_model():
    session = load(REAL)
    (device,) = session.devices
    project = session.analysis.project
    compiled_id = device.operations.index("compiled")
    rows = [row for row, number in enumerate(device.operation_id.tolist()) if number == compiled_id]
    stacks = {int(device.allocations.stack_id[row]) for row in rows}
    assert len(stacks) >= 20
    assert "call" not in device.operations
    for stack in stacks:
        mine = [
            i for i in session.snapshot.stacks.frames_of(stack).tolist() if project.is_project[i]
        ]
        assert project.relative_paths[mine[0]].startswith("cs336_basics/")
