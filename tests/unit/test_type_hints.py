"""Hints of the library resolve: documentation, checkers of arguments and notebooks read them."""

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import snapconv

ROOT = Path(__file__).parents[2]
DOCUMENTED = re.findall(
    r"^#{3,4} `([\w.]+)`|^(snapconv\.\w+\.\w+)\(",
    (ROOT / "docs" / "reference" / "library.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
CLASSES = [name for name in snapconv.__all__ if inspect.isclass(getattr(snapconv, name))]
METHODS = [
    f"{name}.{member}"
    for name in CLASSES
    for member, value in vars(getattr(snapconv, name)).items()
    if not member.startswith("_") and (callable(value) or isinstance(value, classmethod | property))
]
NAMES = sorted(
    {*snapconv.__all__, *METHODS}
    | {(heading or call).removeprefix("snapconv.") for heading, call in DOCUMENTED}
)


def named(name: str) -> object:
    value: object = snapconv
    for part in name.split("."):
        value = getattr(value, part)
    return value.fget if isinstance(value, property) else value


def test_what_the_reference_names_is_walked():
    assert {"load", "recording", "step", "Session.advise", "Budgets.read"} <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_the_hints_of_a_public_name_resolve(name):
    for hint in typing.get_type_hints(named(name)).values():
        assert not isinstance(hint, str | typing.ForwardRef)


def test_a_hint_is_the_class_of_the_answer():
    from snapconv.answers.advice.findings import Advice
    from snapconv.answers.explanation import Explanation

    session = snapconv.Session
    (advice,) = typing.get_args(typing.get_type_hints(session.advise)["return"])
    assert advice is Advice
    assert typing.get_type_hints(session.explain)["return"] is Explanation


def test_a_session_loads_no_answers_for_its_hints():
    code = (
        "import snapconv.session, sys;"
        "print([name for name in sys.modules if name.startswith(('snapconv.answers.advice',"
        "'snapconv.writers.html', 'snapconv.answers.oom', 'snapconv.answers.what_if'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
