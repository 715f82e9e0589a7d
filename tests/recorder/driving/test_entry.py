import pytest

from snapconv.errors import EntryPointError
from snapconv.recorder.program.entry import (
    find_file,
    find_module,
    load_providers,
    provider_module,
    refuse_launcher,
    strip_interpreter,
)

PROVIDERS = """\
def {0}_model_provider():
    return len

def {0}_input_provider(batch_size=32):
    return (batch_size,)

def {0}_iteration_provider(model):
    return lambda *inputs: inputs
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into the current folder and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="entry.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


def load(path):
    entry = find_file(path)
    with provider_module(entry) as module:
        return load_providers(entry, module)


# --- what an entry is


@pytest.mark.parametrize("prefix", ["skyline", "deepview"])
def test_a_file_with_three_providers_of_one_prefix_is_no_script(write, prefix):
    entry = find_file(write(PROVIDERS.format(prefix)))
    assert (entry.kind, entry.providers[0]) == ("providers", f"{prefix}_model_provider")


def test_a_file_without_providers_is_a_script_and_is_not_run(write):
    assert find_file(write("raise SystemExit('run')")).kind == "script"


@pytest.mark.parametrize(
    "text",
    [
        "from model import skyline_model_provider\n",
        "from model import build as skyline_model_provider\n",
        "if True:\n    def skyline_model_provider(): pass\n",
        "try:\n    pass\nexcept ImportError:\n    skyline_model_provider = None\n",
        "with open('x') as skyline_model_provider: pass\n",
    ],
)
def test_a_provider_may_be_bound_in_any_way(write, text):
    rest = PROVIDERS.format("skyline").split("\n\n", 1)[1]
    assert find_file(write(text + rest)).kind == "providers"


def test_a_name_inside_a_function_makes_no_provider(write):
    inner = "def f():\n    def skyline_model_provider(): pass\n"
    assert find_file(write(inner)).kind == "script"


@pytest.mark.parametrize("role", ["model", "input", "iteration"])
def test_a_missing_provider_is_named(write, role):
    text = PROVIDERS.format("skyline").replace(f"skyline_{role}_provider", "something")
    with pytest.raises(EntryPointError, match=f"but no skyline_{role}_provider"):
        find_file(write(text))


def test_a_complete_set_counts_and_not_the_rest_of_another(write):
    text = PROVIDERS.format("deepview") + "def skyline_model_provider(): pass"
    assert find_file(write(text)).providers[0] == "deepview_model_provider"


def test_a_missing_file_is_named_with_the_folder_it_was_looked_for_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EntryPointError, match=rf"no entry file train\.py in {tmp_path}"):
        find_file("train.py")


def test_a_module_given_as_a_file_names_the_option_m(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EntryPointError, match=r"give -m package\.train"):
        find_file("package.train")


def test_a_file_given_as_a_module_is_told_so():
    with pytest.raises(EntryPointError, match=r"no module's name"):
        find_module("scripts/train.py")


def test_a_folder_is_no_entry(tmp_path):
    with pytest.raises(EntryPointError, match="is a folder"):
        find_file(str(tmp_path))


@pytest.mark.parametrize("content", [b"def f(:\n", b"\x80\x04\x95", b"a = 1\0\n"])
def test_what_is_no_python_is_told_before_anything_runs(tmp_path, content):
    (tmp_path / "train.py").write_bytes(content)
    with pytest.raises(EntryPointError, match="not valid Python"):
        find_file(str(tmp_path / "train.py"))


def test_a_syntax_error_names_its_line(write):
    with pytest.raises(EntryPointError, match=r"entry\.py, line 2:"):
        find_file(write("a = 1\nb = = 2\n"))


# --- providers


@pytest.mark.parametrize("prefix", ["skyline", "deepview"])
def test_the_three_providers_are_those_of_the_file_which_is_never_main(write, prefix):
    text = (
        PROVIDERS.format(prefix) + "if __name__ == '__main__':\n    raise SystemExit('ran as main')"
    )
    model, inputs, iteration = load(write(text))
    assert model() is len
    assert inputs(7) == (7,)
    assert iteration(len)(1, 2) == (1, 2)


def test_a_provider_that_is_no_function_in_the_end_is_told(write):
    with pytest.raises(EntryPointError, match="skyline_model_provider is not a function"):
        load(write(PROVIDERS.format("skyline") + "skyline_model_provider = 3"))


# --- what starts other processes, and what is installed

RECORD = ["snapconv", "record", "--stop"]


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "torchrun --nproc-per-node 2 train.py --lr 1",
            "torchrun --nproc-per-node 2 -m snapconv record --stop train.py --lr 1",
        ),
        (
            "accelerate launch --num_processes=8 t.py",
            "accelerate launch --num_processes=8 -m snapconv record --stop t.py",
        ),
        (
            "/opt/bin/torchrun -m pkg.train x",
            "torchrun -m snapconv record --stop -m pkg.train x",
        ),
        ("accelerate launch t.py", "accelerate launch -m snapconv record --stop t.py"),
        (
            "deepspeed t.py --deepspeed",
            "deepspeed --module snapconv record --stop t.py --deepspeed",
        ),
        (
            "torchrun --config=a.py train.py",
            "torchrun --config=a.py -m snapconv record --stop train.py",
        ),
        (
            "torchrun --config a.py train.py --config b.py",
            "torchrun --config a.py -m snapconv record --stop train.py --config b.py",
        ),
        (
            "accelerate launch --config_file a.py --multi_gpu t.py",
            "accelerate launch --config_file a.py --multi_gpu -m snapconv record --stop t.py",
        ),
        ("deepspeed", "deepspeed --module snapconv record --stop SCRIPT"),
        ("trl sft --lr 1", "snapconv record --stop -m trl.scripts.sft --lr 1"),
        ("-m pkg.train x", "snapconv record --stop -m pkg.train x"),
    ],
)
def test_a_launcher_is_refused_with_the_line_that_records(command, line):
    entry, *args = command.split()
    with pytest.raises(EntryPointError) as refused:
        refuse_launcher(entry, args, is_module=False, command=RECORD)
    assert str(refused.value).endswith(f": {line}")


def test_flags_of_python_that_change_nothing_of_a_program_are_left_out():
    for flags in (["-u"], ["-uB", "-q"]):
        args = [*flags, "-m", "pkg.train", "-u"]
        assert strip_interpreter("python3", args, RECORD) == ("pkg.train", ["-u"], True)
    for flags in (["-W", "error"], ["-O"], ["-uO"]):
        with pytest.raises(EntryPointError, match="its own options come first"):
            strip_interpreter("python", [*flags, "a.py"], RECORD)


def test_a_module_that_launches_is_refused_too():
    with pytest.raises(
        EntryPointError,
        match=r": python -m torch.distributed.run -m snapconv record --stop a.py",
    ):
        refuse_launcher("torch.distributed.run", ["a.py"], is_module=True, command=RECORD)
    refuse_launcher("train.py", ["torchrun"], is_module=False, command=RECORD)


def test_a_name_without_a_file_here_is_a_console_script(write, tmp_path, monkeypatch):
    installed = tmp_path / "bin" / "yolo"
    installed.parent.mkdir()
    installed.write_text("#!/usr/bin/env python\n")
    installed.chmod(0o755)
    monkeypatch.setenv("PATH", str(installed.parent))
    found = find_file("yolo")
    assert (found.path, found.kind, found.is_installed) == (str(installed), "script", True)
    assert not find_file(write("", "yolo")).is_installed  # a file here goes first
