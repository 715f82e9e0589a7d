"""What --redact keeps, and what it replaces: the same by the same."""

import time

import pytest

from snapconv.writers.exports.redaction import Redaction

TORCH = "/home/alice/venv/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    "name",
    [
        "at::native::(anonymous namespace)::add(at::Tensor const&, unsigned long)",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(c10::cuda::CUDAStream)",
        "_PyEval_EvalFrameDefault",
        "std::vector<at::Tensor, std::allocator<at::Tensor> >::operator()(bool)",
    ],
)
def test_names_of_torch_and_python_alone_stay(name):
    assert Redaction().frame(name, "??") == (name, "??")


@pytest.mark.parametrize(
    "name",
    [
        "torch::autograd::CppNode<SecretFunction>::apply",
        "secret_kernel(at::Tensor)",
        "at::_ops::call<secret::Op>(bool)",
        "std::function<void (SecretConfig const&)>",
    ],
)
def test_a_symbol_with_any_name_of_its_own_is_replaced_as_a_whole(name):
    function, _ = Redaction().frame(name, "??")
    assert function == "native_1"


def test_a_file_of_torch_keeps_what_is_below_its_package_and_no_more():
    found = Redaction().frame("_call_impl", f"{TORCH}/nn/modules/module.py")
    assert found == ("_call_impl", "/redacted/site-packages/torch/nn/modules/module.py")


def test_a_file_beside_torch_is_not_torchs_whatever_its_path_goes_through():
    found = Redaction().frame("f", f"{TORCH}/../secret/a.py")
    assert found == ("function_1", "/redacted/site-packages/file_1.py")


def test_the_same_file_has_the_same_new_name_and_another_has_another():
    redaction = Redaction()
    one, same, other = (
        redaction.frame("secret", path)[1] for path in ("/home/alice/a.py", "/home/alice/a.py", "/b.py")
    )
    assert one == same == "/redacted/file_1.py"
    assert other == "/redacted/file_2.py"


def test_every_name_of_many_costs_the_same():
    redaction, begin = Redaction(), time.process_time()
    names = [redaction.text(f"epoch {number}") for number in range(50_000)]
    assert names[-1] == "annotation_50000"
    assert time.process_time() - begin < 5


def test_a_function_that_torch_prescribes_keeps_its_name_and_others_do_not():
    redaction = Redaction()
    assert redaction.frame("forward", "/home/alice/a.py")[0] == "forward"
    assert redaction.frame("train_secret", "/home/alice/a.py")[0] == "function_1"


def test_an_installed_file_stays_an_installed_one_and_a_generated_one_generated():
    redaction = Redaction()
    installed = redaction.frame("f", "/opt/lib/python3.11/site-packages/secretlib/x.py")[1]
    generated = redaction.frame("call", "/tmp/torchinductor_alice/ab/x.py")[1]
    assert installed == "/redacted/site-packages/file_1.py"
    assert generated == "/redacted/torchinductor_redacted/file_2.py"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("Optimizer.step#SecretOptimizer.step", "Optimizer.step#optimizer_1.step"),
        ("ProfilerStep#3", "ProfilerStep#3"),
        ("Torch-Compiled Region: 0/1", "Torch-Compiled Region: 0/1"),
        ("secret phase", "annotation_1"),
        ("", ""),
    ],
)
def test_an_annotation_stays_if_torch_wrote_it(text, shown):
    assert Redaction().text(text) == shown


def test_settings_stay_where_torch_has_them_with_a_value_of_torchs():
    entries = (
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,secret_option:alice,backend:/home/alice/x"),
        ("max_split_size", "-1"),
        ("alice_setting", "5"),
        ("expandable_segments", "alice"),
    )
    assert Redaction().settings(entries) == (
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128"),
        ("max_split_size", "-1"),
    )
