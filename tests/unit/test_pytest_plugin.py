"""The pytest plugin in runs of pytest of its own: what it costs those who do not use it, what it fails."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    *("numpy", "torch", "orjson", "typer"),
    *("snapconv.recorder", "snapconv.simulation", "snapconv.session", "snapconv.cli"),
)


def run(folder, source, *options):
    """Run a test file with the plugin alone; where snapconv is installed, pytest has it already."""
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:snapconv",
                "-p",
                "snapconv.pytest_plugin",
            ),
            *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--strict-markers"),
            *("-W", "error", *options),
        ],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    return done.stdout + done.stderr


def test_a_run_that_does_not_use_it_imports_nothing_for_it(tmp_path):
    shown = run(
        tmp_path,
        f"""
import sys, pytest
def test_one(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_two(n, tmp_path): pass
def test_loaded():
    assert "snapconv.pytest_plugin" in sys.modules
    assert [name for name in {HEAVY!r} if name in sys.modules] == []
""",
    )
    assert "4 passed" in shown


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--markers", "@pytest.mark.gpu_memory(max_peak='2GiB'"),
        ("--fixtures", "Measure the GPU memory of the test"),
    ],
)
def test_the_mark_and_the_fixture_are_listed_with_what_they_do(tmp_path, option, text):
    assert text in run(tmp_path, "", option)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What a run of tests with a simulated GPU shows."""
    pytest.importorskip("torch")
    return run(
        tmp_path_factory.mktemp("run"),
        """
import pytest, torch
has_gpu = torch.cuda.is_available()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024, bias=False)
    def forward(self, x):
        return self.layer(x)

@pytest.fixture(scope="module")
def shared():
    return torch.ones(3)

@pytest.fixture
def net():
    return Net().cuda()

def train(net):
    net(torch.randn(64, 1024, device="cuda")).sum().backward()

@pytest.mark.gpu_memory(max_peak="8MiB", simulate=True)
def test_over_its_limit(net):
    train(net)

@pytest.mark.gpu_memory(max_peak="9MiB", simulate=True)
def test_within_its_limit(net, shared):
    train(net)

def test_next(shared):
    assert torch.cuda.is_available() is has_gpu

@pytest.mark.gpu_memory(simulate=True)
def test_peak(gpu_memory):
    assert gpu_memory.is_simulated
    assert gpu_memory.peak_bytes == 0
    held = torch.empty(1 << 20, device="cuda")
    del held
    assert gpu_memory.peak_bytes == 4 << 20
    assert gpu_memory.peaks == {0: 4 << 20}

@pytest.mark.gpu_memory(max_peak="1MiB", simulate=True)
def test_that_fails_by_itself(net):
    raise ValueError("its own")
""",
    )


def test_a_test_over_its_limit_fails_and_says_what_held_the_memory(shown):
    """The weight and its gradient, of 4 MiB each, and the batch."""
    assert "over the limit of 8.00 MiB, simulated" in shown
    assert "4.00 MiB  gradient" in shown
    assert "in net" in shown


def test_a_test_that_fails_by_itself_shows_its_own_failure(shown):
    assert "ValueError: its own" in shown
    assert shown.count("over the limit") == shown.count("over the limit of 8.00 MiB")


def test_tests_within_their_limit_pass_and_nothing_of_the_simulation_stays(shown):
    assert "2 failed, 3 passed" in shown


def test_a_mistake_in_the_mark_is_an_error_before_the_test(tmp_path):
    mistakes = {
        "max_peek='1GiB'": "not max_peek",
        "'1GiB'": "not '1GiB'",
        "max_peak='9'": "max_peak: expected a size with its unit",
        "max_peak=9": "max_peak: expected a size with its unit",
    }
    tests = [
        f"@pytest.mark.gpu_memory({mark})\ndef test_{number}(): pass"
        for number, mark in enumerate(mistakes)
    ]
    shown = run(tmp_path, "\n".join(["import pytest", *tests]))
    assert "4 errors" in shown
    parts = shown.split("ERROR at setup of test_")[1:]
    assert all(message in part for message, part in zip(mistakes.values(), parts, strict=True))


def test_a_test_that_resets_the_peak_itself_keeps_no_limit_by_it(tmp_path):
    pytest.importorskip("torch")
    shown = run(
        tmp_path,
        """
import pytest, torch
@pytest.mark.gpu_memory(max_peak="2MiB", simulate=True)
def test_reset():
    large = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
    del large
    torch.cuda.reset_peak_memory_stats()
    torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
""",
    )
    assert (
        "the test allocated 4.00 MiB of GPU memory at once, 2.00 MiB over the limit of 2.00 MiB"
        in shown
    )
    assert "1 failed" in shown


STEPS = """
import pytest, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024, bias=False)
    def forward(self, x):
        return self.layer(x)

def train(keep=None, kept_bytes=1 << 20):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        loss = net(torch.randn(512, 1024, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if keep is not None:
            keep.append(torch.empty(kept_bytes, dtype=torch.uint8, device="cuda"))

simulated = pytest.mark.gpu_memory(simulate=True)
"""
# Tests that take the device that torch finds.
ON_ANY_DEVICE = f"""{STEPS}
KEPT = []

@pytest.mark.limit_growth("512KiB")
def test_that_leaks():
    train(KEPT)

@pytest.mark.limit_growth
@pytest.mark.no_faults
def test_that_is_clean():
    train()

@pytest.mark.no_faults("4MiB")
def test_that_has_a_fault(gpu_memory):
    assert not gpu_memory.is_simulated
    train(KEPT, kept_bytes=8 << 20)
"""
# A GPU that torch finds before the plugin looks for one, as on a machine that has it.
GPU_OF_THE_MACHINE = """
from snapconv.simulation import simulated
gpu = simulated()
gpu.__enter__()

def pytest_unconfigure():
    gpu.__exit__(None, None, None)
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A run of tests with limits of growth and of faults."""
    pytest.importorskip("torch")
    return run(
        tmp_path_factory.mktemp("limited"),
        f"""{STEPS}
KEPT = []

@simulated
@pytest.mark.limit_growth("512KiB")
def test_that_leaks():
    train(KEPT)

@simulated
@pytest.mark.limit_growth("2MiB")
def test_that_leaks_less_than_it_may():
    train([])

@simulated
@pytest.mark.limit_growth
@pytest.mark.no_faults
def test_that_is_clean():
    train()

@simulated
@pytest.mark.no_faults("4MiB")
def test_that_has_a_fault():
    train(KEPT, kept_bytes=8 << 20)

@pytest.mark.limit_growth
def test_without_memory_of_a_gpu():
    pass

@simulated
@pytest.mark.limit_growth("much")
def test_with_a_wrong_size():
    train()

@pytest.mark.no_faults(1, 2)
def test_with_two_sizes():
    pass
""",
        "-rA",
    )


def outcome(shown, test):
    return next(
        line.split()[0]
        for line in shown.splitlines()
        if line.endswith(f"::{test}") or (f"::{test} - " in line)
    )


def test_growth_over_its_limit_fails_the_test_and_names_the_line(limited):
    """Each step keeps 1 MiB for good."""
    assert outcome(limited, "test_that_leaks") == "FAILED"
    assert outcome(limited, "test_that_leaks_less_than_it_may") == "PASSED"
    assert "growth" in limited
    assert "1.00 MiB" in limited


def test_a_fault_over_its_limit_fails_the_test(limited):
    """A list that gets 8 MiB a step is a fault, and holds five of them at the peak."""
    assert outcome(limited, "test_that_has_a_fault") == "FAILED"
    assert outcome(limited, "test_that_is_clean") == "PASSED"


def check_limits_of_the_device(folder):
    """The marks hold what they say of the device that torch finds, which is not simulated."""
    shown = run(folder, ON_ANY_DEVICE, "-rA")
    assert outcome(shown, "test_that_leaks") == "FAILED"
    assert outcome(shown, "test_that_has_a_fault") == "FAILED"
    assert outcome(shown, "test_that_is_clean") == "PASSED"
    assert "growth" in shown
    assert "assert not" not in shown


def test_marks_limit_what_a_gpu_of_the_machine_has(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "conftest.py").write_text(GPU_OF_THE_MACHINE, encoding="utf-8")
    check_limits_of_the_device(tmp_path)


def test_wrong_limits_are_named_and_a_test_without_memory_holds_all(limited):
    assert outcome(limited, "test_without_memory_of_a_gpu") == "PASSED"
    assert outcome(limited, "test_with_a_wrong_size") == "FAILED"
    assert "limit_growth, no_faults: " in limited
    assert "no_faults takes one size, such as no_faults('1MiB')" in limited
