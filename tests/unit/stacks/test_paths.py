"""File names as recorded, on any system."""

import pytest

from snapconv.stacks.paths import is_library, is_notebook, is_python, is_under, normal


@pytest.mark.parametrize(
    ("recorded", "path"),
    [
        ("/w/proj/train.py", "/w/proj/train.py"),
        ("/w/proj/", "/w/proj"),
        ("./train.py", "train.py"),
        ("././train.py", "train.py"),
        ("C:\\Users\\me\\train.py", "c:/Users/me/train.py"),
        ("C:\\", "c:"),
        ("/", "/"),
        ("", ""),
        ("??", "??"),
    ],
)
def test_a_normal_path_has_forward_slashes_and_no_trailing_one(recorded, path):
    assert normal(recorded) == path


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/w/proj/train.py", "/w/proj"),
        ("/w/proj/a/b.py", "/w/proj"),
        ("/train.py", "/"),
        ("c:/Users/Me/train.py", "c:/users/me"),
        ("c:/users/me/train.py", "c:/Users/Me"),
    ],
)
def test_a_path_lies_below_its_folders(path, root):
    assert is_under(path, root)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/w/proj2/train.py", "/w/proj"),
        ("/w/proj.py", "/w/proj"),
        ("/w/proj", "/w/proj"),
        ("/W/proj/train.py", "/w/proj"),
        ("train.py", "/"),
        ("d:/proj/train.py", "c:/proj"),
    ],
)
def test_a_path_does_not_lie_below_what_only_begins_like_it(path, root):
    assert not is_under(path, root)


@pytest.mark.parametrize(
    "filename",
    [
        "/w/proj/train.py",
        "train.py",
        "<string>",
        "<frozen runpy>",
        "<ipython-input-3-1f2e>",
        "<eval_with_key>.7",
    ],
)
def test_python_frames_are_known_by_their_file(filename):
    assert is_python(filename)


@pytest.mark.parametrize(
    "filename", ["", "??", "Module.cpp", "../csu/libc-start.c", "Functions.cpp", "clone3.S"]
)
def test_frames_of_cpp_are_known_by_their_file(filename):
    assert not is_python(filename)


@pytest.mark.parametrize(
    "filename",
    [
        "<ipython-input-3-1f2e>",
        "/tmp/ipykernel_812/40112.py",
        "/tmp/ipython-input-7-1f2e.py",
        "/tmp/ipython-input-3187540123.py",
        normal("C:\\Users\\me\\AppData\\Local\\Temp\\ipykernel_812\\40112.py"),
    ],
)
def test_cells_of_a_notebook_are_the_users_wherever_they_lie(filename):
    assert is_notebook(filename)
    assert not is_library(filename)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/local/lib/python3.11/site-packages/torch/nn/functional.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "/usr/lib/python3.11/threading.py",
        "/opt/conda/lib/python3.10/runpy.py",
        "/w/proj/.venv/lib/python3.12/contextlib.py",
        "/w/proj/.venv/lib64/python3.12/site-packages/mine/train.py",
        "c:/Python311/Lib/threading.py",
        "c:/proj/venv/Lib/site-packages/torch/_tensor.py",
        "/home/me/cache/ab/c" + "abcdefgh234567" * 3 + "abcdefghi.py",
        "fx_generated__ab12.py",
        "/tmp/torchinductor_me/ab/cabcdef.py",
        "/w/proj/torch_compile_debug/run_1/output_code.py",
        "/src/pytorch/torch/nn/modules/linear.py",
        "/src/pytorch/torch/optim/adamw.py",
        "<string>",
        "<frozen importlib._bootstrap>",
        "<eval_with_key>.7",
    ],
)
def test_installed_packages_the_standard_library_and_generated_code_are_libraries(path):
    assert is_library(path)


@pytest.mark.parametrize(
    "path",
    [
        "c:/Users/me/uv/python/cpython-3.10.19-windows-x86_64-none/lib/copy.py",
        "c:/Users/me/miniconda3/envs/train/Lib/contextlib.py",
        "c:/Users/me/.conda/envs/train/lib/contextlib.py",
        "c:/ProgramData/Anaconda3/Lib/runpy.py",
        "d:/miniforge3/Lib/asyncio/events.py",
        "c:/Users/me/.pyenv/pyenv-win/versions/3.10.5/lib/runpy.py",
    ],
)
def test_the_standard_library_of_other_pythons_on_windows_is_a_library(path):
    assert is_library(path)


@pytest.mark.parametrize(
    "path",
    [
        "/w/proj/train.py",
        "/w/proj/lib/model.py",
        "/w/proj/python/lib2/model.py",
        "/w/lib/pythonic/model.py",
        "/w/proj/python/lib/model.py",
        "/w/proj/envs/cart_pole/lib/model.py",
        "c:/proj/envs/cart_pole/lib/model.py",
        "c:/proj/lib/model.py",
        "/w/proj/ipykernel_tools/train.py",
        "/w/proj/optim/adamw.py",
        "/w/site-packages-of-mine/train.py",
        "c:/Users/me/proj/train.py",
        "train.py",
    ],
)
def test_other_files_are_the_users(path):
    assert not is_library(path)


@pytest.mark.parametrize(
    "path", ["/w/proj/triton_kernels/softmax.py", "/w/triton-attention/train.py"]
)
def test_a_project_may_be_about_triton(path):
    assert not is_library(path)
