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
            for name, filename in (("call", frame) if isinstance(frame, str) else frame for frame in stack)
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


def test_the_root_is_the_folder_of_the_script():
    project = project_of([TORCH, "/w/proj/model.py", script("/w/proj/train.py")])
    assert (project.root, project.is_inferred) == ("/w/proj", True)
    assert own(project) == ["model.py", "train.py"]


def test_the_root_is_widened_to_hold_all_of_the_users_files():
    project = project_of([TORCH, "/w/proj/src/model.py", script("/w/proj/scripts/train.py")])
    assert project.root == "/w/proj"
    assert own(project) == ["src/model.py", "scripts/train.py"]


def test_the_root_is_never_a_folder_that_holds_projects():
    project = project_of(["/home/me/tools/model.py", script("/home/me/proj/train.py")])
    assert project.root == "/home/me/proj"


def test_a_script_right_in_a_folder_that_holds_projects_makes_it_the_root():
    project = project_of(["/workspace/model/net.py", script("/workspace/train.py")])
    assert project.root == "/workspace"
    assert own(project) == ["model/net.py", "train.py"]


class TestProgramsStartedByOthers:
    """The frames of a launcher are in every stack, and those of a debugger wrap the functions of threads."""

    @pytest.mark.parametrize("launcher", ["/opt/launch/run.py", "/a/first.py", "/z/last.py"])
    def test_the_root_is_where_the_bytes_come_from_not_where_the_launcher_is(self, launcher):
        stacks = stack_table(
            [TORCH, "/w/proj/model.py", script("/w/proj/train.py"), ("main", launcher), script(launcher)],
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


@pytest.mark.parametrize(
    ("package", "shown"),
    [
        ("/workspace/mingpt/model.py", "../mingpt/model.py"),
        ("/home/me/mingpt/model.py", "../../home/me/mingpt/model.py"),
        ("/workspace/model.py", "../model.py"),
    ],
)
def test_a_package_that_was_not_installed_is_the_users_wherever_it_is(package, shown):
    project = project_of([TORCH, package, script("/workspace/proj/train.py")])
    assert project.root == "/workspace/proj"
    assert own(project) == [shown, "train.py"]


def test_a_package_beside_the_recorded_folder_is_the_users():
    stack = ["/w/minGPT/mingpt/model.py", script("/w/minGPT/projects/adder/adder.py")]
    recorded = RecordedProject("/w/minGPT/projects/adder")
    assert own(project_of(stack, recorded=recorded)) == ["../../mingpt/model.py", "adder.py"]


@pytest.mark.parametrize(
    "named", [{"root": "/w/adder"}, {"recorded": RecordedProject("/w/adder", is_given=True)}]
)
def test_a_folder_that_was_named_keeps_out_what_lies_beside_it(named):
    assert own(project_of(["/w/mingpt/model.py", script("/w/adder/adder.py")], **named)) == ["adder.py"]


def test_hidden_folders_are_not_the_users_unless_the_project_lies_there():
    debugger = "/home/me/.vscode-server/extensions/debugpy/runpy.py"
    project = project_of([debugger, script("/home/me/proj/train.py")])
    assert own(project) == ["train.py"]
    assert own(project_of([script("/home/me/.work/train.py")])) == ["train.py"]


def test_a_checkout_of_torch_is_a_library():
    checkout = "/src/pytorch/torch"
    files = [f"{checkout}/nn/modules/module.py", f"{checkout}/utils/checkpoint.py"]
    assert own(project_of([*files, "/w/proj/torch/net.py", script("/w/proj/train.py")])) == [
        "torch/net.py",
        "train.py",
    ]


def test_models_of_libraries_are_the_users_as_in_deepview():
    files = [f"{SITE}/transformers/models/gpt2/modeling_gpt2.py", f"{SITE}/transformers/trainer.py"]
    project = project_of([*files, script("/w/proj/train.py")], root="/w/proj")
    assert own(project) == ["transformers/models/gpt2/modeling_gpt2.py", "train.py"]
    assert project.includes == ("transformers/models",)


def test_what_is_included_is_named_and_what_has_no_frame_too():
    project = project_of([f"{SITE}/timm/layers/mlp.py", script("/w/t.py")], includes=["timm.layers", "tim"])
    assert own(project) == ["timm/layers/mlp.py", "t.py"]
    assert (project.includes, project.unused_includes) == (("timm.layers",), ("tim",))


def test_what_was_included_when_it_was_recorded_counts_beside_what_is_given():
    stack = [f"{SITE}/timm/layers/mlp.py", f"{SITE}/einops.py", script("/w/t.py")]
    project = project_of(stack, recorded=RecordedProject("/w", includes=("timm",)), includes=["einops"])
    assert own(project) == ["timm/layers/mlp.py", "einops.py", "t.py"]


def test_frames_of_cpp_are_never_included():
    assert own(project_of(["/w/lib/kernel.cpp", "/w/lib/op.py"], root="/x", includes=["/w/lib"])) == [
        "../w/lib/op.py"
    ]


def test_without_a_script_the_most_used_folder_is_the_root():
    project = project_of(["/opt/a/model.py"], ["/srv/b/x.py"], ["/srv/b/y.py"])
    assert project.root == "/srv/b"


def test_of_equally_used_folders_the_first_by_name_is_the_root():
    assert project_of(["/srv/b/x.py"], ["/opt/a/y.py"]).root == "/opt/a"


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
    project = project_of([venv, "/w/proj/.venv/lib/python3.11/runpy.py", script("/w/proj/train.py")])
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


def test_the_file_system_root_may_be_given():
    project = project_of(["/train.py", "/a/model.py", TORCH], root="/")
    assert own(project) == ["train.py", "a/model.py"]


def test_a_script_recorded_by_its_relative_name_is_the_users():
    project = project_of(["/w/proj/model.py", script("train.py")])
    assert project.root == "/w/proj"
    assert own(project) == ["model.py", "train.py"]


def test_relative_names_alone_give_no_root():
    project = project_of(["src/model.py", script("./train.py")])
    assert project.root is None
    assert own(project) == ["src/model.py", "train.py"]


def test_paths_of_windows_are_compared_without_case_and_shown_with_slashes():
    project = project_of(
        ["C:\\Users\\Me\\proj\\src\\model.py", "C:\\Python311\\Lib\\runpy.py"], root="c:/users/me/Proj"
    )
    assert own(project) == ["src/model.py"]


def test_a_root_is_inferred_on_windows():
    project = project_of(["D:\\proj\\src\\model.py", script("D:\\proj\\scripts\\train.py")])
    assert project.root == "d:/proj"
    assert own(project) == ["src/model.py", "scripts/train.py"]


def test_home_folders_of_windows_are_no_root():
    project = project_of(["C:\\Users\\me\\tools\\x.py", script("C:\\Users\\me\\proj\\train.py")])
    assert project.root == "c:/Users/me/proj"


def test_a_whole_drive_is_no_root():
    project = project_of(["D:\\tools\\x.py", script("D:\\proj\\train.py")])
    assert project.root == "d:/proj"


def test_a_project_may_lie_right_below_a_drive():
    project = project_of(["C:\\proj\\src\\model.py", script("C:\\proj\\scripts\\train.py")])
    assert project.root == "c:/proj"


@pytest.mark.parametrize("cell", CELLS)
def test_cells_of_a_notebook_are_the_users(cell):
    project = project_of([TORCH, script(cell)])
    assert project.is_project.tolist() == [False, True]


@pytest.mark.parametrize("cell", CELLS)
def test_a_module_that_a_notebook_uses_is_the_users(cell):
    project = project_of([TORCH, "/home/me/proj/model.py", script(cell)])
    assert project.root == "/home/me/proj"
    assert project.is_project.tolist() == [False, True, True]


def test_generated_code_is_not_the_users_even_below_the_root():
    project = project_of(["/w/proj/torchinductor_me/ab/cab.py", script("/w/proj/train.py")], root="/w/proj")
    assert own(project) == ["train.py"]


def test_without_a_file_of_the_users_the_package_that_was_started_stands_for_it():
    started = [("main", f"{SITE}/yolo/cfg.py"), ("<module>", "/opt/venv/bin/yolo")]
    called = [TORCH, f"{SITE}/other/layer.py", ("train", f"{SITE}/yolo/train.py"), *started]
    project = project_of(called, [TORCH, *started])
    assert set(own(project)) == {"yolo/train.py", "yolo/cfg.py"}
    assert project.includes == ("yolo",)


def test_what_starts_others_is_not_the_package_that_was_started():
    project = project_of(
        [TORCH, f"{SITE}/tune/recipe.py", f"{SITE}/click/core.py", "/usr/lib/python3.11/runpy.py"]
    )
    assert own(project) == ["tune/recipe.py"]


def test_a_named_root_is_not_replaced_by_a_package():
    assert own(project_of([TORCH, f"{SITE}/yolo/cfg.py"], root="/w/proj")) == []
