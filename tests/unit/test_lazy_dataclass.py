"""A frozen dataclass whose methods are made late is like one of the standard library in everything else."""

import copy
import dataclasses
import pickle

import pytest

from snapconv.lazy_dataclass import dataclass


def example(decorate, name):
    """A class as the project has them, made by one of the two."""

    class Example:
        a: int
        b: tuple[int, ...] = (1, 2)
        c: list[int] = dataclasses.field(default_factory=list)

        @property
        def double(self):
            return 2 * self.a

    Example.__name__ = Example.__qualname__ = name
    return decorate(frozen=True, slots=True)(Example)


Lazy, Standard = example(dataclass, "Lazy"), example(dataclasses.dataclass, "Standard")

# Of a class with so many instances, one is made by a function compiled for it.
MANY = 20


def outcome(cls, action):
    """What an action returns or raises, with the name of the class left out."""
    try:
        result = action(cls)
    except (TypeError, AttributeError) as error:
        result = (type(error), str(error))
    return repr(result).replace(cls.__name__, "CLASS")


ACTIONS = {
    "positional": lambda cls: cls(1, (2,), [3]),
    "named": lambda cls: cls(c=[3], a=1, b=(2,)),
    "defaults": lambda cls: cls(1),
    "a missing value": lambda cls: cls(b=(2,)),
    "a value too many": lambda cls: cls(1, 2, 3, 4),
    "an unknown name": lambda cls: cls(1, d=2),
    "assigning": lambda cls: setattr(cls(1), "a", 2),
    "deleting": lambda cls: delattr(cls(1), "a"),
    "equal": lambda cls: cls(1) == cls(1),
    "unequal": lambda cls: cls(1) == cls(2),
    "of another class": lambda cls: cls(1) == (1, (1, 2), []),
    "hash": lambda cls: hash(cls(1, c=())) == hash(cls(1, c=())),
    "hash of a list": lambda cls: hash(cls(1)),
    "replace": lambda cls: dataclasses.replace(cls(1), a=2),
    "as a dictionary": lambda cls: dataclasses.asdict(cls(1)),
    "fields": lambda cls: [field.name for field in dataclasses.fields(cls)],
    "slots": lambda cls: cls.__slots__,
    "match": lambda cls: cls.__match_args__,
    "pickled": lambda cls: pickle.loads(pickle.dumps(cls(1))),
    "copied": lambda cls: copy.deepcopy(cls(1)),
    "property": lambda cls: cls(4).double,
    "dictionary of attributes": lambda cls: cls(1).__dict__,
}


@pytest.mark.parametrize("n_instances", [0, MANY])
@pytest.mark.parametrize("action", ACTIONS)
def test_it_does_what_the_standard_one_does(action, n_instances, monkeypatch):
    lazy = example(dataclass, "Lazy")
    monkeypatch.setitem(globals(), "Lazy", lazy)  # where pickle looks for it
    for _ in range(n_instances):
        lazy(1)
    assert outcome(lazy, ACTIONS[action]) == outcome(Standard, ACTIONS[action])


def test_every_instance_has_a_list_of_its_own():
    assert Lazy(1).c is not Lazy(1).c


def test_its_own_methods_stay():
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str

        def __repr__(self):
            return self.name

    assert repr(Named("one")) == "one"


@pytest.mark.parametrize("decorate", [dataclass, dataclasses.dataclass])
def test_methods_of_a_subclass_that_call_those_of_its_base_stay(decorate):
    class Known(example(decorate, "Known")):
        def __init__(self, a):
            super().__init__(a, (7,))

        def __eq__(self, other):
            return super().__eq__(other) is True

        def __hash__(self):
            return hash(self.a)

    for _ in range(MANY):
        known = Known(1)
        assert (known.a, known.b, known.c) == (1, (7,), [])
        assert known == Known(1)
        assert (known == 1) is False
        assert hash(known) == hash(1)


def test_other_kinds_are_the_standard_ones():
    @dataclass(slots=True)
    class Open:
        a: int

    opened = Open(1)
    opened.a = 2
    assert opened == Open(2)
