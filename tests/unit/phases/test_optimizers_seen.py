"""How many states the optimizer keeps is inferred from its name in an annotation, or by its file."""

import pickle
from collections import Counter

import pytest

from snapconv.classification.categories import Category
from snapconv.phases.trace_phases import find_optimizers
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.stack_roles import assign_roles
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    TORCH,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    frames,
)

WEIGHT, GRADIENT, STATE, UNKNOWN = (
    Category.WEIGHT,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.UNKNOWN,
)


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size: classified(job, tmp_path / "snapshot.pickle", size)


def seen(job, path):
    path.write_bytes(pickle.dumps(job.snapshot()))
    snapshot = load_snapshot(path)
    return find_optimizers(snapshot, assign_roles(snapshot.stacks))


def states(job, path):
    return seen(job, path).states_range


def stepped(*names):
    job = Job()
    for name in names:
        job.note(f"Optimizer.step#{name}.step", "START")
        job.alloc(MAIN)
        job.note(f"Optimizer.step#{name}.step", "END")
    return job


def stepped_in(*files):
    job = Job()
    for file in files:
        job.alloc(
            frames(("step", f"{TORCH}/optim/{file}.py"), ("wrapper", f"{TORCH}/optim/optimizer.py"))
        )
    return job


# torch/optim of 2.13: what `_init_group` puts into the state of a parameter that is as large as it.
STATES = (
    ("Adam", 2),
    ("AdamW", 2),
    ("NAdam", 2),
    ("RAdam", 2),
    ("Adamax", 2),
    ("Adadelta", 2),
    ("Rprop", 2),
)


@pytest.mark.parametrize(("name", "n_states"), [*STATES, ("Adagrad", 1)])
def test_an_optimizer_is_known_by_its_name_and_by_its_file(name, n_states, tmp_path):
    assert states(stepped(name), tmp_path / "a.pickle") == (n_states, n_states)
    assert states(stepped_in(name.lower()), tmp_path / "b.pickle") == (n_states, n_states)


def stepped_by(file, name):
    """A step of a class in a file of a package, as torch annotates it."""
    job = Job()
    job.note(f"Optimizer.step#{name}.step", "START")
    job.alloc(frames(("step", file), ("wrapper", f"{TORCH}/optim/optimizer.py")) + MAIN)
    job.note(f"Optimizer.step#{name}.step", "END")
    return job


# By their sources, what the first step makes of the size of a weight in float32: lion-pytorch 0.2.3,
# timm 1.0.31, adan-pytorch 0.1, dadaptation 3.2, madgrad 1.3, pytorch-optimizer 4.1, muon-optimizer 0.1,
# galore-torch 1.0, torchao 0.18.
OF_OTHERS = (
    ("lion_pytorch/lion_pytorch.py", "Lion", (1, 1)), ("timm/optim/lamb.py", "Lamb", (2, 2)),
    ("adan_pytorch/adan.py", "Adan", (4, 4)), ("dadaptation/dadapt_adam.py", "DAdaptAdam", (3, 3)),
    ("pytorch_optimizer/optimizer/aggmo.py", "AggMo", (3, 3)),
    ("muon.py", "SingleDeviceMuonWithAuxAdam", (1, 2)),
    ("torchao/optim/adam.py", "AdamW8bit", None), ("pytorch_optimizer/optimizer/soap.py", "SOAP", None),
)  # fmt: skip


@pytest.mark.parametrize(("file", "name", "expected"), OF_OTHERS)
def test_an_optimizer_of_another_library_is_known_by_its_file(file, name, expected, tmp_path):
    job = stepped_by(f"/opt/venv/lib/python3.11/site-packages/{file}", name)
    found = seen(job, tmp_path / "a.pickle")
    assert found.are_known
    assert found.states_range == expected


@pytest.mark.parametrize("name", ["SOAP", "Lion", "Muon", "AdamW"])
def test_a_copy_in_a_program_may_keep_anything(name, tmp_path):
    found = seen(stepped_by(f"/w/proj/{name.lower()}.py", name), tmp_path / "a.pickle")
    assert not found.are_known
    assert not found.variants


def test_a_class_of_two_packages_is_that_of_the_file(tmp_path):
    """optimi 0.3.3 keeps what rounding lost of weights in bfloat16; torch does not."""
    of_optimi = seen(stepped_by("/lib/optimi/adam.py", "AdamW"), tmp_path / "a.pickle")
    assert of_optimi.states_range == (2, 3)
    of_torch = seen(stepped_by(f"{TORCH}/optim/adam.py", "AdamW"), tmp_path / "b.pickle")
    assert of_torch.states_range == (2, 2)


# momentum_buffer, by its arguments.
def test_of_an_optimizer_with_options_the_least_and_the_most_are_known(tmp_path):
    assert states(stepped("SGD"), tmp_path / "a.pickle") == (0, 1)
    assert states(stepped_in("sgd"), tmp_path / "b.pickle") == (0, 1)


@pytest.mark.parametrize("name", ["Adam8bit", "MyAdam", "LBFGS", "SOAP", "CAME8bit"])
def test_of_others_nothing_is_known(name, tmp_path):
    assert states(stepped(name), tmp_path / "a.pickle") is None


def test_optimizers_that_keep_different_states_are_no_evidence(tmp_path):
    assert states(stepped("Adam", "AdamW"), tmp_path / "a.pickle") == (2, 2)
    assert states(stepped("Adam", "Adagrad"), tmp_path / "b.pickle") is None
    assert states(stepped_in("adam", "sgd"), tmp_path / "c.pickle") is None


def test_adagrad_makes_its_states_when_it_is_built(tmp_path):
    """torch/optim/adagrad.py has them in __init__; the others make theirs in their first step."""
    assert seen(stepped("Adagrad"), tmp_path / "a.pickle").states_are_built
    assert seen(stepped_in("adagrad"), tmp_path / "b.pickle").states_are_built
    for number, job in enumerate(
        (stepped("AdamW"), stepped("Adagrad", "AdamW"), stepped("MyAdam"), Job())
    ):
        assert not seen(job, tmp_path / f"{number}.pickle").states_are_built


def test_steps_on_several_lines_may_be_of_several_models(tmp_path):
    job = Job()
    for line in (1, 2):
        call = [{"name": "main", "filename": "/w/proj/train.py", "line": line}]
        job.alloc(
            frames(("step", f"{TORCH}/optim/adam.py"), ("wrapper", f"{TORCH}/optim/optimizer.py"))
            + call
        )
        job.alloc(
            frames(("step", f"{TORCH}/optim/adam.py"), ("step", f"{TORCH}/amp/grad_scaler.py"))
            + call
        )
        found = seen(job, tmp_path / f"{line}.pickle")
        assert found.states_range == (2, 2)
        assert found.may_be_several == (line == 2)


def test_a_file_is_better_than_a_class_that_it_does_not_have(tmp_path):
    """A subclass, or a class of a package whose name is that of torch's."""
    job = stepped("Adagrad")
    job.alloc(frames(("_multi_tensor_adam", f"{TORCH}/optim/adam.py")))
    assert states(job, tmp_path / "a.pickle") == (2, 2)


def test_without_a_step_nothing_is_known(tmp_path):
    job = Job()
    job.alloc(MAIN)
    assert states(job, tmp_path / "a.pickle") is None


def step_at(line):
    own = frames(("step", f"{TORCH}/optim/adam.py"), ("wrapper", f"{TORCH}/optim/optimizer.py"))
    return [*own, {"name": "main", "filename": "/w/proj/train.py", "line": line}]


ACTOR, CRITICS = (4096, 8192), (4096, 8192, 6000) * 2
TRAINED_IN_TURN = Counter(ACTOR + CRITICS)


def two_models(sizes, *, n_optimizers=1):
    """Two models with an Adam or more each, whose gradients are dropped right after the step."""
    job = Job()
    for size in [size for model in sizes for size in model] * (1 + 2 * n_optimizers):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        for line, model in enumerate(sizes):
            job.does(FORWARD)
            gradients = [job.alloc(ENGINE, size) for size in model]
            job.does(step_at(line))
            for gradient in gradients:
                job.free(gradient, ZERO_GRAD)
    return job


def test_sizes_that_are_made_more_often_than_others_are_of_several_models(found):
    job = two_models([(4096, 4096, 4096, 8192), (4096, 6000)])
    assert Counter(categories(found(job, 4096)))[WEIGHT] <= 4
