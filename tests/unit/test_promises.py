"""Promises of the documentation that only their own tests keep.

Where a program should be refused, nothing else fails when it no longer is: all correct programs
still run. So whoever removes such a behaviour with its test has to take its sentence out of the
documentation here, too.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A page, a sentence of it, and the file and the tests that hold it.
PROMISES = [
    (
        "docs/guide/simulate.md",
        "Tensors of two devices in one operation are PyTorch's own error",
        "tests/recorder/simulation/test_same_device.py",
        (
            "test_an_operation_on_two_devices_is_refused_in_the_words_of_torch",
            "test_an_operation_that_cuda_takes_is_taken",
            "test_a_tensor_that_the_program_put_on_the_cpu_is_refused",
            "test_a_tensor_that_may_be_on_the_device_is_never_refused",
        ),
    ),
    (
        "docs/guide/recording.md",
        "also while the script waits in C++",
        "tests/recorder/driving/test_unheard_signals.py",
        ("test_a_script_that_waits_in_cpp_is_written_within_five_seconds_of_sigterm_and_ends",),
    ),
]


@pytest.mark.parametrize(("page", "sentence", "file", "tests"), PROMISES)
def test_a_promise_stands_in_the_documentation_and_is_tested(page, sentence, file, tests):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert sentence in text
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {*tests} <= defined
