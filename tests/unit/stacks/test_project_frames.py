"""Which frames are the user's: the root, given or inferred, and paths relative to it."""

import numpy as np
import pytest

from snapconv.snapshot.recorded.metadata import RecordedProject
from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.project_frames import find_project

SITE = "/opt/venv/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch/nn/modules/module.py"
CELLS = ["<ipython-input-3-1f2e>", "/tmp/ipykernel_812/40112.py", "/tmp/ipython-input-7-1f2e.py"]


def stack_table(*stacks):
    """Stacks of frames, leaf first; a frame is its file, or (function, file)."""
    interner = StackInterner()
    rows = [
        [
            {"name": name, "filename": filename, "line": 1}
            for name, filename in (
                ("call", frame) if isinstance(frame, str) else frame for frame in stack
            )
        ]
        for stack in stacks
    ]
    interner.ids(rows, str)
    return interner.table()


def script(filename):
    return ("<module>", filename)


def project_of(*stacks, **options):
    return find_project(stack_table(*stacks), **options)


def own(project):
    """The relative paths of the frames that are the user's."""
    pairs = zip(project.relative_paths, project.is_project.tolist(), strict=True)
    return [path for path, is_own in pairs if is_own]


CHECKOUT = "/src/pytorch/torch"
# The frames of a stack, the root, the paths of the frames that are the user's, and what was given.
PROJECTS = {
    "the folder of the script": (
        [TORCH, "/w/proj/model.py", script("/w/proj/train.py")], "/w/proj", ["model.py", "train.py"],
    ),
    "widened to hold all files": (
        [TORCH, "/w/proj/src/model.py", script("/w/proj/scripts/train.py")],
        "/w/proj", ["src/model.py", "scripts/train.py"],
    ),
    "never a folder that holds projects": (
        ["/home/me/tools/model.py", script("/home/me/proj/train.py")],
        "/home/me/proj", ["../tools/model.py", "train.py"],
    ),
    "unless a script is right in it": (
        ["/workspace/model/net.py", script("/workspace/train.py")],
        "/workspace", ["model/net.py", "train.py"],
    ),
    "a package beside the project": (
        [TORCH, "/workspace/mingpt/model.py", "/workspace/model.py", script("/workspace/proj/train.py")],
        "/workspace/proj", ["../mingpt/model.py", "../model.py", "train.py"],
    ),
    "a package in another home": (
        ["/home/me/mingpt/model.py", script("/workspace/proj/train.py")],
        "/workspace/proj", ["/home/me/mingpt/model.py", "train.py"],
    ),
    "a package beside the recorded folder": (
        ["/w/mingpt/model.py", script("/w/projects/adder/adder.py")],
        "/w/projects/adder", ["/w/mingpt/model.py", "adder.py"],
        {"recorded": RecordedProject("/w/projects/adder")},
    ),
    "a given folder keeps out what lies beside it": (
        ["/w/mingpt/model.py", script("/w/adder/adder.py")], "/w/adder", ["adder.py"], {"root": "/w/adder"},
    ),
    "and so does one that was given to the recorder": (
        ["/w/mingpt/model.py", script("/w/adder/adder.py")], "/w/adder", ["adder.py"],
        {"recorded": RecordedProject("/w/adder", is_given=True)},
    ),
    "hidden folders": (
        ["/home/me/.vscode-server/extensions/x/runpy.py", script("/home/me/proj/train.py")],
        "/home/me/proj", ["train.py"],
    ),
    "hidden folders beside a project that is not at home": (
        ["/mnt/me/.vscode-server/ext/launcher.py", script("/mnt/me/proj/train.py")],
        "/mnt/me/proj", ["train.py"],
    ),
    "a cache beside files without a script": (
        ["/workspace/me/.cache/torch/hub/x/net.py", "/workspace/me/proj/model.py"],
        "/workspace/me/proj", ["model.py"],
    ),
    "a project in a hidden folder": ([script("/home/me/.work/train.py")], "/home/me/.work", ["train.py"]),
    "a checkout of torch": (
        [f"{CHECKOUT}/nn/modules/module.py", f"{CHECKOUT}/x.py", "/w/p/torch/net.py", script("/w/p/t.py")],
        "/w/p", ["torch/net.py", "t.py"],
    ),
    "includes of the recorder and of the user": (
        [f"{SITE}/timm/layers/mlp.py", f"{SITE}/einops.py", script("/w/t.py")],
        "/w", ["timm/layers/mlp.py", "einops.py", "t.py"],
        {"recorded": RecordedProject("/w", includes=("timm",)), "includes": ["einops"]},
    ),
    "frames of C++ are never included": (
        ["/w/lib/k.cpp", "/w/lib/op.py"], "/x", ["/w/lib/op.py"], {"root": "/x", "includes": ["/w/lib"]},
    ),
    ("the root of the file "
    "system"): (["/t.py", "/a/m.py", TORCH], "/", ["t.py", "a/m.py"], {"root": "/"}),
    "a script by its relative name": (
        ["/w/proj/model.py", script("train.py")], "/w/proj", ["model.py", "train.py"],
    ),
    "relative names alone": (["src/model.py", script("./train.py")], None, ["src/model.py", "train.py"]),
    "Windows, without case": (
        ["C:\\Users\\Me\\proj\\src\\model.py", "C:\\Python311\\Lib\\runpy.py"],
        "c:/users/me/Proj", ["src/model.py"], {"root": "c:/users/me/Proj"},
    ),
    "Windows, inferred": (
        ["D:\\proj\\src\\model.py", script("D:\\proj\\scripts\\train.py")],
        "d:/proj", ["src/model.py", "scripts/train.py"],
    ),
    "homes of Windows": (
        ["C:\\Users\\me\\tools\\x.py", script("C:\\Users\\me\\proj\\train.py")],
        "c:/Users/me/proj", ["../tools/x.py", "train.py"],
    ),
    "a whole drive": (["D:\\tools\\x.py", script("D:\\proj\\t.py")], "d:/proj", ["../tools/x.py", "t.py"]),
    "generated code": (
        ["/w/proj/torchinductor_me/ab/cab.py", script("/w/proj/train.py")],
        "/w/proj", ["train.py"], {"root": "/w/proj"},
    ),
    "a program that others start": (
        [TORCH, f"{SITE}/tune/recipe.py", f"{SITE}/click/core.py", "/usr/lib/python3.11/runpy.py"],
        None, ["tune/recipe.py"],
    ),
    ("no package in place of a given "
    "root"): ([TORCH, f"{SITE}/yolo/cfg.py"], "/w", [], {"root": "/w"}),
}  # fmt: skip


@pytest.mark.parametrize("case", PROJECTS.values(), ids=PROJECTS)
def test_the_root_and_the_frames_of_the_user(case):
    stack, root, expected, *given = case
    project = project_of(stack, **(given[0] if given else {}))
    assert (project.root, own(project)) == (root, expected)


def test_without_a_script_the_most_used_folder_is_the_root_and_of_equals_the_first_by_name():
    assert project_of(["/opt/a/model.py"], ["/srv/b/x.py"], ["/srv/b/y.py"]).root == "/srv/b"
    assert project_of(["/srv/b/x.py"], ["/opt/a/y.py"]).root == "/opt/a"


class TestProgramsStartedByOthers:
    """The frames of a launcher are in every stack, and those of a debugger wrap the functions of threads."""

    @pytest.mark.parametrize("launcher", ["/opt/launch/run.py", "/a/first.py", "/z/last.py"])
    def test_the_root_is_where_the_bytes_come_from_not_where_the_launcher_is(self, launcher):
        stacks = stack_table(
            [
                TORCH,
                "/w/proj/model.py",
                script("/w/proj/train.py"),
                ("main", launcher),
                script(launcher),
            ],
            [("setup", launcher), script(launcher)],
        )
        project = find_project(stacks, bytes_of_stack=np.array([1000, 10]))
        assert project.root == "/w/proj"

    def test_a_launcher_counts_no_more_where_it_has_more_stacks(self):
        stacks = stack_table(
            ["/w/proj/model.py", script("/w/proj/train.py"), script("/opt/launch/run.py")],
            *([("setup", "/opt/launch/run.py"), (f"f{i}", "/opt/launch/run.py")] for i in range(9)),
        )
        project = find_project(stacks, bytes_of_stack=np.array([1000, *[1] * 9]))
        assert project.root == "/w/proj"

    @pytest.mark.parametrize(
        "folder",
        [
            "/opt/pycharm/plugins/python/helpers/pydev",
            "/Applications/PyCharm.app/Contents/plugins/python-ce/helpers/pydev",
            "/home/me/.vscode-server/extensions/ms-python.debugpy-2025.8.0/bundled/libs/debugpy",
            "/home/me/tools/debugpy/_vendored/pydevd",
            "C:\\Program Files\\JetBrains\\PyCharm\\plugins\\python\\helpers\\pydev",
        ],
    )
    def test_what_a_debugger_wraps_around_threads_is_nobodys_line(self, folder):
        stacks = stack_table(
            ["/w/proj/model.py", ("__call__", f"{folder}/_pydev_bundle/pydev_monkey.py")],
            [TORCH, ("__call__", f"{folder}/_pydev_bundle/pydev_monkey.py")],
            ["/w/proj/model.py", script("/w/proj/train.py"), script(f"{folder}/pydevd.py")],
        )
        project = find_project(stacks, bytes_of_stack=np.array([100, 10_000, 100]))
        assert project.root == "/w/proj"
        assert own(project) == ["model.py", "train.py"]


def test_models_of_libraries_are_the_users_as_in_deepview():
    files = [f"{SITE}/transformers/models/gpt2/modeling_gpt2.py", f"{SITE}/transformers/trainer.py"]
    project = project_of([*files, script("/w/proj/train.py")], root="/w/proj")
    assert own(project) == ["transformers/models/gpt2/modeling_gpt2.py", "train.py"]
    assert project.includes == ("transformers/models",)


def test_what_is_included_is_named_and_what_has_no_frame_too():
    project = project_of(
        [f"{SITE}/timm/layers/mlp.py", script("/w/t.py")], includes=["timm.layers", "tim"]
    )
    assert own(project) == ["timm/layers/mlp.py", "t.py"]
    assert (project.includes, project.unused_includes) == (("timm.layers",), ("tim",))


def test_libraries_alone_make_no_project():
    project = project_of([TORCH, "/usr/lib/python3.11/runpy.py"], ["??", "Module.cpp"])
    assert project.root is None
    assert own(project) == []
    assert project.relative_paths[0] == TORCH


def test_no_frames_make_no_project():
    project = project_of()
    assert (project.root, project.relative_paths, len(project.is_project)) == (None, (), 0)


def test_a_virtual_environment_inside_the_project_is_not_the_users():
    venv = "/w/proj/.venv/lib/python3.11/site-packages/torch/_tensor.py"
    project = project_of(
        [venv, "/w/proj/.venv/lib/python3.11/runpy.py", script("/w/proj/train.py")]
    )
    assert own(project) == ["train.py"]
    assert project.relative_paths[0] == ".venv/lib/python3.11/site-packages/torch/_tensor.py"


def test_a_folder_that_only_begins_like_the_root_is_outside_it():
    project = project_of(["/w/proj2/model.py", script("/w/proj/train.py")], root="/w/proj")
    assert own(project) == ["train.py"]
    assert project.relative_paths == ("/w/proj2/model.py", "train.py")


@pytest.mark.parametrize("root", ["/w/proj", "/w/proj/", "/w/proj//"])
def test_a_given_root_is_taken_as_it_is(root):
    project = project_of(["/w/proj/a/model.py", script("/w/train.py")], root=root)
    assert (project.root, project.is_inferred) == ("/w/proj", False)
    assert own(project) == ["a/model.py"]


def test_a_given_root_need_not_hold_any_frame():
    project = project_of([TORCH, "/w/proj/model.py"], root="/nowhere")
    assert project.root == "/nowhere"
    assert own(project) == []
    assert project.relative_paths == (TORCH, "/w/proj/model.py")


@pytest.mark.parametrize("cell", CELLS)
def test_cells_of_a_notebook_are_the_users(cell):
    project = project_of([TORCH, script(cell)])
    assert project.is_project.tolist() == [False, True]


@pytest.mark.parametrize("cell", CELLS)
def test_a_module_that_a_notebook_uses_is_the_users(cell):
    project = project_of([TORCH, "/home/me/proj/model.py", script(cell)])
    assert project.root == "/home/me/proj"
    assert project.is_project.tolist() == [False, True, True]


def test_without_a_file_of_the_users_the_package_that_was_started_stands_for_it():
    started = [("main", f"{SITE}/yolo/cfg.py"), ("<module>", "/opt/venv/bin/yolo")]
    called = [TORCH, f"{SITE}/other/layer.py", ("train", f"{SITE}/yolo/train.py"), *started]
    project = project_of(called, [TORCH, *started])
    assert set(own(project)) == {"yolo/train.py", "yolo/cfg.py"}
    assert project.includes == ("yolo",)
