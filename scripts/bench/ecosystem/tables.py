"""The figures of results.json -> tables in Markdown.

Imports nothing of the others, so that the docs can be made without torch.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

Figures = dict[str, Any]

MODES = ("compute", "no-compute")
MIB = 2**20
ABSENT = "–"


def markdown(found: Figures) -> str:
    """Both tables, with what the figures depend on."""
    return "\n\n".join((about(found), cost(found), agreement(found)))


def about(found: Figures) -> str:
    """Say with what, when and how often was measured."""
    facts = found["about"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    how_often = (
        "one run of each"
        if found["n_runs"] == 1
        else f"the least of {found['n_runs']} runs of each"
    )
    where = f"{facts['cpus']} CPUs, {facts['system']}, CPython {facts['python']}"
    return (
        f"Measured on {facts['date']}: {where}; {versions}; {how_often}, a fresh process every "
        f"time."
    )


def cost(found: Figures) -> str:
    """Return the seconds and the memory of every program in its three ways."""
    head: tuple[str, ...] = (
        "program",
        "steps",
        "plain, s",
        "recorded, s",
        "×",
        "`--no-compute`, s",
    )
    head += ("after the first step: plain, s", "recorded, s")
    head += ("peak RSS: plain, MiB", "recorded, MiB", "`--no-compute`, MiB")
    programs = found["programs"]
    rows = [_cost_row(name, figures) for name, figures in programs.items()]
    return "\n\n".join((_table(head, rows), *_typical(programs.values()), *_failures(programs)))


def _cost_row(name: str, figures: Figures) -> tuple[str, ...]:
    plain, recorded, shapes = (figures[way] for way in ("plain", *MODES))
    return (
        name,
        str(recorded.get("n_steps", ABSENT)),
        _number(plain, "user_s"),
        _number(recorded, "user_s"),
        _as_text(ratio(figures, "user_s")),
        _number(shapes, "user_s"),
        *(_later_steps(one) for one in (plain, recorded)),
        *(_number(one, "peak_rss_bytes", unit=MIB, digits=0) for one in (plain, recorded, shapes)),
    )


def _later_steps(one: Figures) -> str:
    """Return the seconds after the first step, of a program that has more."""
    return _number(one, "later_steps_s", digits=2) if one.get("n_steps", 0) > 1 else ABSENT


def ratio(figures: Figures, key: str) -> float | None:
    """Return what a program took recorded by what it took plainly; None where one of them has nothing."""
    plain, recorded = figures["plain"], figures["compute"]
    if "failure" in plain or "failure" in recorded or not plain.get(key):
        return None
    return float(recorded[key] / plain[key])


def _as_text(found: float | None) -> str:
    return ABSENT if found is None else f"{found:.1f}"


def _typical(programs: Iterable[Figures]) -> tuple[str, ...]:
    """Say what recording costs half of the programs at most: the imports with the rest, and without them."""
    found = list(programs)
    lines = []
    for key, what in (("user_s", "Whole programs"), ("later_steps_s", "After the first step")):
        ratios = [one for figures in found if (one := ratio(figures, key)) is not None]
        if ratios:
            lines.append(
                f"{what}: {median(ratios):.1f} × in the median, {max(ratios):.1f} × at most."
            )
    return (" ".join(lines),) if lines else ()


def _failures(programs: dict[str, Figures]) -> tuple[str, ...]:
    lines = [
        f"* `{name}`, {way}: {_in_one_line(one['failure'])}"
        for name, figures in programs.items()
        for way, one in figures.items()
        if "failure" in one
    ]
    return ("What did not run:\n\n" + "\n".join(lines),) if lines else ()


def _in_one_line(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} …"


def agreement(found: Figures) -> str:
    """Return the peak of every program in both modes, and how much of it has no category."""
    head = (
        "program",
        "peak of allocated, bytes",
        "with `--no-compute`",
        "unknown",
        "with `--no-compute`",
    )
    return _table(
        head, (_agreement_row(name, figures) for name, figures in found["programs"].items())
    )


def _agreement_row(name: str, figures: Figures) -> tuple[str, ...]:
    computed, shapes = (figures[mode] for mode in MODES)
    return (
        name,
        _bytes(computed),
        _difference(computed, shapes),
        _unknown(computed),
        _unknown(shapes),
    )


def public(found: Figures) -> str:
    """Return the programs of public repositories: what was run, and where it differs from their own count."""
    head: tuple[str, ...] = (
        "repository",
        "program",
        "peak, bytes",
        "`--no-compute`",
        "unknown",
        "differs",
    )
    head += ("alone on the CPU, s", "recorded, s", "with `--no-compute`, s")
    rows = (_public_row(program) for program in found["programs"].values())
    return _table(head, rows)


def _public_row(program: Figures) -> tuple[str, ...]:
    computed, shapes = (program[mode] for mode in MODES)
    folder = "" if program["folder"] == "." else f"{program['folder']}/"
    named = " ".join(one for one in program["command"][:2] if not one.startswith("-"))
    with_torch = f" (torch {program['torch']})" if "torch" in program else ""
    ran = [mode for mode in MODES if "failure" not in program[mode]]
    differs = [mode for mode in ran if program[mode]["differs"]]
    return (
        f"{program['repository']} at {program['commit'][:7]}",
        f"`{folder}{program.get('shown', named)}`{with_torch}",
        "fails" if "failure" in computed else _bytes(computed),
        "fails" if "failure" in shapes else _peak(computed, shapes),
        _unknown(program[ran[0]]),
        ", ".join(differs) or "nowhere",
        *(_number(one, "seconds") for one in (program["alone"], computed, shapes)),
    )


def distributed(found: Figures) -> str:
    """Return the public programs of several ranks: what rank 0 needs, or why it is not known."""
    head = ("repository", "program", "line", "peak of rank 0, bytes", "s", "notes")
    rows: list[list[str]] = []
    for program in found["programs"].values():
        cells = [
            f"{program['repository']} at {program['commit'][:7]}",
            f"`{program['shown']}`",
            f"`{program['launch']}`",
        ]
        if "failure" in program:
            reason = f"`{_in_one_line(program['failure'])}`"
            because = f": {program['why']}" if "why" in program else ""
            rows.append([*cells, "fails", ABSENT, f"{reason}{because}"])
            continue
        notes = ", ".join(f"`{slug}`" for slug in program["notes"])
        rows.append([*cells, f"{program['peak_bytes']:,}", f"{program['seconds']:.0f}", notes])
    return _table(head, rows)


def drawn(programs: dict[str, Figures], results: Iterable[dict[str, str]]) -> str:
    """Return the drawn programs: the peak of both ways, if all is as counted, or what is not."""
    by_way = {(row["name"], row["mode"]): row for row in results}
    rows = []
    for name, program in programs.items():
        ways = [by_way.get((name, mode), {}) for mode in MODES]
        rows.append((
            f"{program['repository']} at {program['commit']}",
            f"`{program['file']}`",
            program["kind"],
            *(_first_and_now(way.get("first", ""), way.get("now", "")) for way in ways),
        ))  # fmt: skip
    columns = [{name: by_way.get((name, mode), {}) for name in programs} for mode in MODES]
    sums = []
    for what, keys in (("At first", ("first",)), ("Now", ("now", "first"))):
        ended = [
            [next((way[key] for key in keys if way.get(key)), "") for way in column.values()]
            for column in columns
        ]
        both = sum(all(cell.isdigit() for cell in cells) for cells in zip(*ended, strict=True))
        tried = [sum(bool(cell) for cell in cells) for cells in ended]
        equal = [sum(cell.isdigit() for cell in cells) for cells in ended]
        sums.append(
            f"{what}: with values {equal[0]} of {tried[0]} that ran are equal, with "
            f"`--no-compute` {equal[1]} of {tried[1]}, {both} in both."
        )
    head = ("repository", "program", "kind", "peak, bytes", "with `--no-compute`")
    return "\n\n".join((" ".join(sums), _table(head, rows)))


def _first_and_now(first: str, now: str) -> str:
    cells = [f"{int(cell):,}" if cell.isdigit() else cell for cell in (first, now) if cell]
    return ", then ".join(cells) or "not run"


def _peak(computed: Figures, shapes: Figures) -> str:
    return _bytes(shapes) if "failure" in computed else _difference(computed, shapes)


def _bytes(one: Figures) -> str:
    return ABSENT if "failure" in one else f"{one['peak_bytes']:,}"


def _difference(computed: Figures, shapes: Figures) -> str:
    if "failure" in computed or "failure" in shapes:
        return ABSENT
    difference = shapes["peak_bytes"] - computed["peak_bytes"]
    return (
        "the same"
        if not difference
        else f"{difference:+,} ({difference / computed['peak_bytes']:+.2%})"
    )


def _unknown(one: Figures) -> str:
    return ABSENT if "failure" in one else f"{one['unknown_bytes'] / one['peak_bytes']:.3%}"


def _number(one: Figures, key: str, *, unit: float = 1, digits: int = 1) -> str:
    return ABSENT if "failure" in one or one.get(key) is None else f"{one[key] / unit:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))
