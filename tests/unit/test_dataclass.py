"""Our ``dataclass`` makes the classes that the standard library's makes, method by method."""

import ast
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import field
from pathlib import Path

import pytest

import snapconv
from snapconv.dataclass import dataclass

PACKAGE = Path(snapconv.__file__).parent
DECORATORS = pytest.mark.parametrize("decorate", [dataclass, dataclasses.dataclass])
SLOTS = pytest.mark.parametrize("slots", [True, False])


@dataclass(frozen=True, slots=True)
class Point:
    """A class that pickle finds by its name."""

    x: int
    label: str = "origin"


def row_class(decorate, **options):
    """Make the same class by either decorator."""

    @decorate(**options)
    class Row:
        """A row."""

        size: int
        name: str = "weight"
        kinds: list[str] = field(default_factory=list)
        hint: str = field(default="none", compare=False, repr=False)

    return Row


def error_of(call):
    with pytest.raises(TypeError) as caught:
        call()
    return str(caught.value)


@SLOTS
@DECORATORS
def test_fields_are_taken_in_order_and_by_name_with_their_defaults(decorate, slots):
    row_of = row_class(decorate, slots=slots)
    row, other = row_of(1, hint="h"), row_of(2, "bias", ["a"])
    assert (row.size, row.name, row.kinds, row.hint) == (1, "weight", [], "h")
    assert (other.size, other.name, other.kinds, other.hint) == (2, "bias", ["a"], "none")
    assert row.kinds is not row_of(1).kinds
    assert hasattr(row, "__dict__") is not slots


@DECORATORS
def test_a_wrong_call_names_the_field(decorate):
    row_of = row_class(decorate, frozen=True, slots=True)
    assert "missing 1 required positional argument: 'size'" in error_of(row_of)
    assert "unexpected keyword argument 'width'" in error_of(lambda: row_of(1, width=2))
    assert "multiple values for argument 'size'" in error_of(lambda: row_of(1, size=2))


@DECORATORS
def test_a_repr_has_the_fields_that_are_shown(decorate):
    row = row_class(decorate, frozen=True)(1, kinds=["a"])
    row.kinds.append(row)
    name = "row_class.<locals>.Row"
    assert repr(row) == f"{name}(size=1, name='weight', kinds=['a', ...])"


@DECORATORS
def test_objects_are_compared_by_class_and_by_the_fields_that_count(decorate):
    row_of, stranger_of = row_class(decorate), row_class(decorate)
    assert row_of(1, hint="a") == row_of(1, hint="b")
    assert row_of(1) != row_of(2)
    assert row_of(1) != stranger_of(1)
    assert row_of.__hash__ is None
    assert row_class(decorate, eq=False)(1) != row_class(decorate, eq=False)(1)


@SLOTS
@DECORATORS
def test_a_frozen_object_has_a_hash_and_no_field_changes(decorate, slots):
    class Key:
        """A key."""

        text: str
        number: int = 0

    key_of = decorate(frozen=True, slots=slots)(Key)
    key = key_of("a", 1)
    assert len({key, key_of("a", 1), key_of("a", 2)}) == 2
    assert hash(key) == hash(("a", 1))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'text'"):
        key.text = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
        del key.number
    assert key_of.__dataclass_params__.frozen


@DECORATORS
def test_methods_of_a_class_are_kept_and_it_may_finish_its_objects(decorate):
    class Size:
        """A size."""

        n: int
        n_bits: int = 0

        def __post_init__(self):
            object.__setattr__(self, "n_bits", self.n * 8)

        def __repr__(self):
            return f"{self.n} bytes"

        def __hash__(self):
            return 7

    size = decorate(frozen=True, slots=True)(Size)(2)
    assert (repr(size), hash(size), size.n_bits) == ("2 bytes", 7, 16)


def test_objects_are_copied_pickled_and_replaced():
    point = Point(3)
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == Point(3, "origin")
    assert dataclasses.replace(point, label="end") == Point(3, "end")
    assert dataclasses.asdict(point) == {"x": 3, "label": "origin"}
    match point:
        case Point(x, label):
            assert (x, label) == (3, "origin")


@SLOTS
def test_a_signature_is_that_of_the_standard_library(slots):
    ours, standard = (
        row_class(dataclass, slots=slots),
        row_class(dataclasses.dataclass, slots=slots),
    )
    by_name = inspect.signature(ours).parameters
    assert list(by_name) == list(inspect.signature(standard).parameters)
    for name, parameter in inspect.signature(standard).parameters.items():
        if name != "kinds":  # whose default says that it comes from a factory
            assert by_name[name] == parameter


@pytest.mark.parametrize("base_decorate", [dataclass, dataclasses.dataclass])
@DECORATORS
def test_a_class_inherits_fields(base_decorate, decorate):
    base = row_class(base_decorate, frozen=True, slots=True)

    parts = {"__module__": __name__, "__annotations__": {"width": int}, "width": 0}
    wider_of = decorate(frozen=True, slots=True)(type("Wider", (base,), parts))
    row = wider_of(1, width=4)
    assert (row.size, row.name, row.width) == (1, "weight", 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.width = 5


def test_every_class_of_snapconv_has_it():
    paths = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "dataclass.py"]
    standard = [
        path.relative_to(PACKAGE).as_posix()
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        if node.module == "dataclasses" and "dataclass" in {alias.name for alias in node.names}
    ]
    assert len(paths) > 200
    assert standard == []


def test_a_class_compiles_nothing():
    """A second class with as many fields as an earlier one has nothing to compile."""
    program = """
import sys
from snapconv.dataclass import dataclass
source = '''
@dataclass(frozen=True, slots=True)
class {}:
    "A row."
    {}: int
    {}: str = "b"
'''
codes = [compile(source.format(*names.split()), "source", "exec") for names in ("A x y", "B z w")]
exec(codes[0])
compiled = []
sys.addaudithook(lambda event, _: compiled.append(event) if event == "compile" else None)
exec(codes[1])
print(compiled, B(1), B(z=2, w="c"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PACKAGE.parent,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout == "[] B(z=1, w='b') B(z=2, w='c')\n"
