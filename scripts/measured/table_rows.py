"""Measurements of one optimizer -> rows of the table. Needs no torch."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Any

from scripts.measured.optimizer_cases import ROLES, SHAPES

FIGURES = ("first_f32", "later_f32", "first_bf16", "later_bf16")
COLUMNS = (
    *(
        "package",
        "version",
        "optimizer",
        "options",
        "weights",
        "state",
        *ROLES,
        "whole",
        "number",
        "dtype",
    ),
    *("device", "moment", "replaced", "made_in", "step", *FIGURES, "note"),
)
DTYPES = ("float32", "bfloat16")
_ABSENT = "-"
_NOT_MEASURED = "?"
# From so many on, states of a list are one row with their number.
_MANY = 3

Row = dict[str, str]


def shape_rule(shape: Sequence[int], weight: Sequence[int]) -> str:
    """Return how a state's shape follows from its weight's, in the words that the table's header explains."""
    shape, weight = tuple(shape), tuple(weight)
    n_state, n_weight = prod(shape), prod(weight)
    if shape == weight:
        return "same"
    if n_state <= 1:
        return "one"
    sides = tuple(side for side in shape if side != 1)
    if len(weight) > 1 and sides == tuple(side for side in weight[:-1] if side != 1):
        return "rows"
    if len(weight) > 1 and sides == tuple(side for side in (*weight[:-2], weight[-1]) if side != 1):
        return "columns"
    if n_state == n_weight:
        return "flat" if len(shape) == 1 else "reshaped"
    if shape[1:] == weight and shape[0] not in weight:
        return f"{shape[0]} x same"
    names = side_names(weight)
    if any(side in names for side in sides):
        return " x ".join(names.get(side, str(side)) for side in sides)
    for first, second in combinations_with_replacement(
        [side for side in weight if side in names], 2
    ):
        # A view of a larger tensor holds all of it; the state's shape is then its number of
        # elements.
        if len(sides) == 1 and n_state == first * second:
            return f"{names[first]} x {names[second]}"
    share = round(n_weight / n_state)
    if len(sides) == 1 and share > 1 and -(-n_weight // share) == n_state:
        return f"n/{share}"
    return " x ".join(map(str, sides))


def side_names(weight: Sequence[int]) -> dict[int, str]:
    """Return names of the sides of a weight and of their products: d0, d1, d1d2d3; a side alone wins."""
    names: dict[int, str] = {}
    for length in range(1, max(2, len(weight))):
        for start in range(len(weight) - length + 1):
            name = "".join(f"d{index}" for index in range(start, start + length))
            names.setdefault(prod(weight[start : start + length]), name)
    names.pop(1, None)
    return names


def whole_rule(shape: Sequence[int], n_all: int) -> str:
    """Return the rule of a state of no single weight."""
    n_state = prod(shape)
    if n_state == n_all:
        return "all weights"
    return "one" if n_state == 1 else " x ".join(map(str, shape))


@dataclass(frozen=True, slots=True)
class StateKey:
    """What states of several weights have in common when they share a row."""

    name: str
    number: str
    dtype: str
    device: str
    moment: str
    replaced: str
    made_in: str


def state_rows(measured: Mapping[str, Any]) -> dict[StateKey, dict[str, str]]:
    """Return the states of one measurement, with the shape rule by weight."""
    rows: dict[StateKey, dict[str, str]] = {}
    for state, number in with_numbers(measured["states"], measured["roles"]):
        key = StateKey(
            state["name"], str(number), state["dtype"], state["device"], state["moment"],
            "each step" if state["is_replaced"] else "", state["frame"],
        )  # fmt: skip
        rows.setdefault(key, {})[state["role"]] = state["rule"]
    return rows


def with_numbers(
    states: Sequence[Mapping[str, Any]], roles: Sequence[str]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Return states with their rules, those of a long list once, with how many it has."""
    n_all = sum(prod(SHAPES[role]) for role in roles)
    ruled = []
    for state in states:
        shape, role = state["shape"], state["role"]
        # A state of all weights is kept with the first of them, as LBFGS does.
        role = "all" if prod(shape) == n_all and len(roles) > 1 else role
        rule = whole_rule(shape, n_all) if role == "all" else shape_rule(shape, SHAPES[role])
        in_list = re.sub(r"\[\d+\]", "[]", state["name"])
        ruled.append({**state, "role": role, "rule": rule, "list": in_list})

    def family(state: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(state[name] for name in ("list", "role", "rule", "dtype", "device"))

    sizes = Counter(map(family, ruled))
    known: set[tuple[Any, ...]] = set()
    for state in ruled:
        of_family = family(state)
        if sizes[of_family] < _MANY:
            yield state, 1
        elif of_family not in known:
            known.add(of_family)
            moments = {other["moment"]: None for other in ruled if family(other) == of_family}
            moment = next(iter(moments)) + (" and later" if len(moments) > 1 else "")
            yield {**state, "name": state["list"], "moment": moment}, sizes[of_family]


def rows_of(
    key: Sequence[str], version: str, by_dtype: Mapping[str, Mapping[str, Any]]
) -> Iterator[Row]:
    """Return the rows of one optimizer with its options: results by the dtype of the weights."""
    package, optimizer, options = key
    common = {"package": package, "version": version, "optimizer": optimizer, "options": options}
    measured = {
        dtype: result["measured"] for dtype, result in by_dtype.items() if "measured" in result
    }
    reasons = {
        dtype: str(result["failed"]) for dtype, result in by_dtype.items() if dtype not in measured
    }
    if len(reasons) > 1 and len(set(reasons.values())) == 1:
        reasons = {"both": reasons[DTYPES[0]]}
    for dtype, reason in reasons.items():
        yield {**common, "weights": dtype, "state": "(failed)", "note": reason}
    if not measured:
        return
    step = dict(common)
    for dtype, short in zip(DTYPES, ("f32", "bf16"), strict=True):
        if dtype in measured:
            by_step = {
                int(number): share for number, share in measured[dtype]["temporaries"].items()
            }
            step[f"first_{short}"] = figure(by_step.pop(1))
            step[f"later_{short}"] = figure(max(by_step.values()))
            step["step"] = measured[dtype]["step"]
    notes: dict[str, None] = {}
    for dtype, measurement in measured.items():
        for note in (
            *measurement["notes"],
            *(() if by_dtype[dtype]["has_values"] else ("by shapes alone",)),
        ):
            notes[note] = None
    step["note"] = "; ".join(notes)
    rows = list(with_weights(step, measured))
    yield rows[0]
    # What holds of the whole optimizer stands in its first row.
    once = dict.fromkeys((*FIGURES, "note"), "")
    for row in rows[1:]:
        yield row | once


def with_weights(step: Row, measured: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Return the rows of an optimizer's states: one for both types of weights where they do not differ."""
    tables = {dtype: state_rows(measurement) for dtype, measurement in measured.items()}
    roles = {dtype: measurement["roles"] for dtype, measurement in measured.items()}
    stateless = [dtype for dtype, table in tables.items() if not table]
    if stateless:
        yield {
            **step,
            "weights": "both" if len(stateless) == len(DTYPES) else stateless[0],
            "state": "(none)",
        }
    merged: dict[tuple[StateKey, tuple[str, ...]], dict[str, str]] = {}
    for dtype, table in tables.items():
        for key, rules in table.items():
            absent = {role: _ABSENT if role in roles[dtype] else _NOT_MEASURED for role in ROLES}
            cells = tuple((absent | {"all": _ABSENT} | rules).values())
            bare = StateKey(
                key.name, key.number, "", key.device, key.moment, key.replaced, key.made_in
            )
            by_weights = merged.setdefault((bare, cells), {})
            by_weights[dtype] = (
                key.dtype if dtype not in by_weights else by_weights[dtype] + " " + key.dtype
            )
    for (key, cells), by_weights in merged.items():
        row = {**step, **dict(zip((*ROLES, "whole"), cells, strict=True))}
        row |= {"state": key.name, "number": key.number, "device": key.device}
        made_in = key.made_in.removeprefix(step["step"].rpartition(":")[0])
        row |= {"moment": key.moment, "replaced": key.replaced, "made_in": made_in}
        if by_weights == dict(zip(DTYPES, DTYPES, strict=True)):
            yield {**row, "weights": "both", "dtype": "as the weight"}
        elif len(set(by_weights.values())) == 1 and len(by_weights) == len(tables) == 2:
            yield {**row, "weights": "both", "dtype": by_weights["float32"]}
        else:
            for dtype, of_state in by_weights.items():
                yield {**row, "weights": dtype, "dtype": of_state}


def figure(share: float) -> str:
    """Return a multiple of the weights' bytes with two digits after the point, the shortest way."""
    return f"{share:.2f}".rstrip("0").rstrip(".")
