"""Where a truth value was not computed, a program goes the way that needs more memory, and is told so."""

import logging
import re
import runpy
import sys

import pytest

torch = pytest.importorskip("torch")

from snapconv.guest.own_frames import call_user  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = pytest.mark.smoke("no-compute")


@pytest.fixture
def simulation():
    with simulated(SimulationOptions(compute=False)) as running:
        yield running


@pytest.fixture
def x(simulation):
    """A tensor whose values nobody computed."""
    return torch.randn(200, 200, device="cuda")


def work(*_):
    return "more"


def of_two(x):
    if x.sum() > 0:
        return work(work())
    return "less"


def of_two_negated(x):
    if not x.sum() > 0:
        return "less"
    else:
        return work(work())


def of_two_expressions(x):
    return work(work()) if x.max() < 3 else "less"


def with_another_condition(x):
    if len(x) == 200 and not (x.sum() > 0 or x.min() < 0):
        return "less"
    return work(work())


def leaves_early(x):
    if x.sum() > 0:
        return "less"
    return work(work())


def goes_on(x):
    for _ in range(1):
        if (x > 1).any():
            continue
        return work(work())
    return "less"


def takes_any(x):
    found = (x > 1).any()
    return "more" if found else "less"


def doubts_all(x):
    found = (x > 1).all()
    return "less" if found else "more"


def raises(x):
    if not (x >= 0).all():
        raise ValueError("negative")
    return "more"


def ends_the_program(x):
    if not (x >= 0).all():
        work()
        sys.exit(1)
    return "more"


def asserts(x):
    assert (x >= 0).all()
    return "more"


def is_finite(x):
    total = x.sum()
    if torch.isnan(x).any() or not torch.isfinite(x).all() or total != total:
        work()
        return "broken"
    return "more"


def is_no_one_number(x):
    if x[0, 0] == 0:  # a table that is built anew where it is empty
        work()
        return "again"
    return "more"


def waits(x):
    n_times = 0
    while x.sum() > 1:
        n_times += 1
    return "more" if n_times == 1 else n_times


def waits_for_one_of_two(x):
    n_times = 0
    while x.sum() > 1 or x.max() > 1:
        n_times += 1
    return "more" if 1 <= n_times <= 3 else n_times


def ends_after_all(x):
    while True:
        if (x > 1).all():
            break
        work()
    return "more"


def is_no_norm(norm):
    return bool((~torch.isfinite(norm) | (norm < 0)).any())


def keeps_what_may_be(x):
    kept = [row for row in x[:3] if row.sum() > 1]
    return "more" if len(kept) == 3 else len(kept)


def keeps_what_may_not_be(x):
    kept = {i: row for i, row in enumerate(x[:3]) if not row.sum() > 1 and i < 2}
    return "more" if len(kept) == 2 else len(kept)


def any_of_one(x):
    is_wrong = is_no_norm(x.norm())
    return "less" if is_wrong else work(work())


BRANCHES = [
    *(
        of_two,
        of_two_negated,
        of_two_expressions,
        with_another_condition,
        leaves_early,
        goes_on,
        takes_any,
    ),
    *(
        doubts_all,
        raises,
        ends_the_program,
        asserts,
        is_finite,
        is_no_one_number,
        waits,
        waits_for_one_of_two,
        ends_after_all,
    ),
    any_of_one,
    keeps_what_may_be,
    keeps_what_may_not_be,
]


@pytest.mark.parametrize("branch", BRANCHES, ids=lambda branch: branch.__name__)
def test_the_way_that_needs_more_is_taken(x, branch, monkeypatch):
    monkeypatch.setattr("snapconv.simulation.branches._PATIENCE", 20)
    assert branch(x) == "more"


def test_a_module_of_the_program_may_have_a_name_as_torchs_have(x, tmp_path):
    module = tmp_path / "box_ops.py"
    module.write_text(
        "def checked(x):\n    assert (x[:, 1:] >= x[:, :-1]).all()\n    return 'more'\n"
    )
    assert runpy.run_path(str(module))["checked"](x) == "more"


def test_a_note_has_the_lines_that_were_left_out(x, simulation):
    if x.sum() > 0:
        work(work())
        work()
    else:
        work(1)

    [note] = simulation.notes()
    assert "(bool() taken as True)" in note.message
    line = test_a_note_has_the_lines_that_were_left_out.__code__.co_firstlineno
    assert (
        f"the peak may be too low: such a value decides at "
        f"tests/recorder/simulation/test_branches.py:{line + 1}"
    ) in note.message


def test_what_is_entered_or_goes_on_after_a_check_makes_no_peak_too_low(x, simulation):
    if x.sum() > 0:
        work()
    if x.sum() > 100:
        raise ValueError(x)
    work()

    [note] = simulation.notes()
    assert "too low" not in note.message


def test_nothing_may_be_too_low_where_only_a_text_was_left_out(x, simulation):
    log = logging.getLogger("of this test")
    for _ in range(2):
        if torch.isnan(x.sum()):
            print(f"step {len(x)}: loss is {x.sum().item():.2f}, {x[0] * 2}")  # noqa: T201
            log.warning("lost at %d" % len(x))  # noqa: UP031  # as programs do
            continue
        if x.sum().item() > 3:
            print("high", round(x.sum().item() / 7, 2))  # noqa: T201
    [note] = simulation.notes()
    assert "too low" not in note.message

    if x.sum().item() > 3:
        print(work(x))  # noqa: T201
    [note] = simulation.notes()
    assert "too low: such a value" in note.message


def test_a_number_that_decides_what_runs_gives_a_doubt_and_one_that_is_only_read_none(
    x, simulation
):
    kept = x.sum().item() if len(x) else work(work())
    if x.sum().item() < 0:
        raise ValueError(kept)
    [note] = simulation.notes()
    assert "too low" not in note.message

    if x.sum().cpu().tolist() > 0.5:
        work(work())
    else:
        work(float(x.sum()))
    [note] = simulation.notes()
    assert re.search(
        r"may be too low: such a value decides at \S*test_branches\.py:\d+$", note.message
    )


def test_a_loop_of_torchs_own_is_entered_once_and_leaves_nothing_out(simulation):
    for _ in range(3):
        torch.nn.init.trunc_normal_(torch.empty(1 << 18, device="cuda"))

    assert all("too low" not in note.message for note in simulation.notes())
    assert max(simulation.tracker.values_read._n_asked.values(), default=0) <= 6


def test_a_value_that_a_function_returns_decides_where_it_is_called(x):
    def is_fine():
        return bool(x.isfinite().all())

    def is_bad():
        return not bool((x * 3 > x.sum()).all())

    if not is_fine():
        raise ValueError
    if is_bad():
        raise ValueError


def test_a_check_within_torch_is_passed(x):
    torch.distributions.Normal(x, x.abs() + 1, validate_args=True)
    torch.nn.functional.one_hot(x.argmax(-1), 200)


def test_a_check_within_a_function_of_torchs_python_code_is_passed(x):
    """Of the small ones torch's mask of negative values has values here, some of them True."""
    for mean, variance in ((x, x.abs()), (x.mean(1), x.var(1))):
        loss = torch.nn.functional.gaussian_nll_loss(mean, mean, variance)
        assert loss.shape == ()


def test_a_line_below_the_start_of_the_program_is_none_of_its_lines(simulation, x):
    call_user(torch.Tensor.item, x.sum())
    [note] = simulation.notes()
    assert "read at (unknown line) (item())" in note.message
