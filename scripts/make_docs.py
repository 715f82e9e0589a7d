"""Write the parts of docs/ and README.md that come out of the program; a test fails when they differ.

    python scripts/make_docs.py

A page is written by hand, except what stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.
"""

import ast
import inspect
import json
import os
import runpy
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.docs.memory_schema_page import memory_schema_page
from scripts.docs.time_schema_page import time_schema_page
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.rule_catalog import DECISION_REASONS, EVIDENCE_WORTH
from snapconv.cli.app import app
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, OPTIMIZER_RULES, FrameRule

ROOT = Path(__file__).parents[1]
SNAPSHOT = "fixtures/training_step.pickle"
CAPTURE = "fixtures/transformer.capture"
OOM_SNAPSHOT = "fixtures/out_of_memory.pickle"
GROWING = "fixtures/growing.pickle"
ONE_ITERATION = ("--format", "snapshot", "--iterations", "1", "--redact")
WHAT_IF = ("--setting", "expandable_segments:True", "--setting", "max_split_size_mb:64")
REPORT = "training_step.memory.sqlite"
EXPLAINED = "0x7f4008e00000"  # cuBLAS's workspace, made in the first forward
TYPE_WORDS = {Path: "PATH", str: "TEXT", int: "N"}

# (the question, the query, whether it needs --extended): shown in docs/guide/reports.md with their answers.
QUERIES = (
    (
        "Which lines hold the most activation memory?",
        """\
SELECT file_path, line_number, count(*) AS n, sum(size_bytes) AS bytes
FROM activation_entries
JOIN stack_correlation ON entry_id = id AND entry_type = 2
JOIN stack_frames USING (correlation_id)
WHERE ordering = 0
GROUP BY file_path, line_number ORDER BY bytes DESC LIMIT 5;""",
        False,
    ),
    (
        "Which operations?",
        """\
SELECT operation_name, count(*) AS n, sum(size_bytes) AS bytes
FROM activation_entries GROUP BY operation_name ORDER BY bytes DESC LIMIT 5;""",
        False,
    ),
    (
        "How much are the weights, and their gradients?",
        """\
SELECT count(*) AS n, sum(size_bytes) AS weights, sum(grad_size_bytes) AS gradients FROM weight_entries;""",
        False,
    ),
    (
        "What was live at the peak, and how sure is its category?",
        """\
SELECT category, evidence, count(*) AS n, sum(block_bytes) AS bytes
FROM snapconv_peak_allocations GROUP BY category, evidence ORDER BY bytes DESC;""",
        True,
    ),
    (
        "How high was the peak of every iteration?",
        "SELECT iteration, peak_allocated_bytes, peak_event FROM snapconv_iterations;",
        True,
    ),
)


def main() -> None:
    """Write every page anew."""
    for path in (ROOT / "README.md", *(ROOT / "docs" / name for name in GENERATED)):
        path.write_text(page(path), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


def page(path: Path) -> str:
    """Return a page as it must be: all of it made by the program, or its parts."""
    name = path.relative_to(ROOT).as_posix().removeprefix("docs/")
    return PAGES[name]() if name in PAGES else filled(path, PARTS[name])


def filled(path: Path, parts: dict[str, Callable[[], str]]) -> str:
    """Return a page's text with the named parts made anew."""
    text = path.read_text(encoding="utf-8")
    for name, make in parts.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{path}: no part between {begin} and {end}")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def commands() -> str:
    """Describe every command with the texts of its own help."""
    return "\n\n".join(_command(info.name, info.callback) for info in app.registered_commands)


def _command(name: str | None, callback: Callable[..., Any] | None) -> str:
    assert name
    assert callback
    rows = list(parameters(callback))
    arguments = " ".join(words for words, _, is_option in rows if not is_option)
    usage = f"snapconv {name} [OPTIONS] {arguments}"
    described = _table(("what", "meaning"), ((f"`{words}`", text) for words, text, _ in rows))
    return f"### `{usage}`\n\n{inspect.getdoc(callback)}\n\n{described}"


def parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, str, bool]]:
    """Return for every parameter: how it is written, its help, and whether it is an option."""
    for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
        hint = parameter.annotation
        for info in typing.get_args(hint)[1:]:
            if isinstance(info, ArgumentInfo):
                yield (info.metavar or name.upper()), info.help or "", False
            elif isinstance(info, OptionInfo):
                yield _option_words(info, typing.get_args(hint)[0]), info.help or "", True


def _option_words(info: ParameterInfo, kind: object) -> str:
    # Inside Annotated, typer takes the first name for the default.
    names = sorted(filter(None, (info.default, *(info.param_decls or ()))), key=len)
    kinds = [k for k in (kind, *typing.get_args(kind)) if k in TYPE_WORDS]
    value = info.metavar or (TYPE_WORDS[kinds[0]] if kinds else "")
    return f"{', '.join(names)} {value}".rstrip()


def accuracy() -> str:
    """Return the tables of the classification's benchmark, as its last run left its figures."""
    bench = ROOT / "scripts" / "bench" / "classification"
    tables = runpy.run_path(str(bench / "tables.py"))
    figures = json.loads((bench / "results.json").read_text(encoding="utf-8"))
    return str(tables["markdown"](figures))


def frame_rules() -> str:
    """Return the table of the frame rules, in the order in which they are tried."""
    columns = ("slug", "role", "function", "file", "why", "torch")
    return _table(columns, (_rule_cells(rule) for rule in FRAME_RULES))


def _rule_cells(rule: FrameRule) -> tuple[str, ...]:
    function = _code(rule.function) + (" (outermost Python frame only)" if rule.is_outermost else "")
    role = rule.role.name.lower()
    return _code(rule.slug), role, function, _code(rule.file), rule.reason, rule.seen


def optimizers() -> str:
    """Return the table of the optimizers whose states are known."""
    rows = (
        (_code(rule.name), _code(rule.file), str(rule.n_states), f"`{rule.reason}`")
        for rule in OPTIMIZER_RULES
    )
    return _table(("class", "file", "states for a parameter", "these"), rows)


def evidence() -> str:
    """Return the table of the kinds of evidence, strong ones first and none last."""
    worth = {**EVIDENCE_WORTH, Evidence.NONE: EVIDENCE_WORTH[Evidence.NONE]}
    kinds = sorted(worth, key=lambda kind: kind or len(worth))
    rows = ((f"`{kind.label}`", worth[kind].follows_from, worth[kind].is_wrong_when) for kind in kinds)
    return _table(("evidence", "the category follows from", "it is wrong when"), rows)


def decision_rules() -> str:
    """Return the table of the rules that are no frame rules."""
    rows = (
        (f"`{rule.slug}`", _labels(rule.categories), _labels(rule.evidence), rule.reason)
        for rule in DECISION_REASONS
    )
    return _table(("rule", "category", "evidence", "reason"), rows)


def _labels(words: Iterable[Category | Evidence]) -> str:
    return ", ".join(f"`{word.label}`" for word in words)


def _code(pattern: str) -> str:
    """Set a regular expression as code; a bar would end the cell of a Markdown table."""
    return f"`{pattern}`".replace("|", "\\|") if pattern else "any"


def ecosystem_tables(name: str) -> str:
    """Return one of the tables of the ecosystem's benchmark, as its last run left its figures."""
    bench = ROOT / "scripts" / "bench" / "ecosystem"
    figures = json.loads((bench / "results.json").read_text(encoding="utf-8"))
    return str(runpy.run_path(str(bench / "tables.py"))[name](figures))


def ecosystem_programs(name: str) -> str:
    """Return the table of the programs of tests/ecosystem: ``PROGRAMS`` or ``REFUSED``."""
    catalogue = runpy.run_path(str(ROOT / "tests" / "ecosystem" / "catalogue.py"))
    rows = (
        (program.name, f"`{' '.join((program.file, *program.arguments))}`", _first_line(program.path))
        for program in catalogue[name]
    )
    return _table(("program", "in `tests/ecosystem/programs`", "what it is"), rows)


def _first_line(program: Path) -> str:
    """Return the first line of a program's docstring."""
    docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{program}: no docstring says what it is")
    return docstring.splitlines()[0]


def session() -> str:
    """Return a conversion of the example as the terminal shows it."""
    return _in_terminal("to-sqlite", CAPTURE)


def answered(*arguments: str) -> str:
    """Return what a command answers about the example as the terminal shows it."""
    return _in_terminal(*arguments)


def explained() -> str:
    """Return the explanation of an allocation of the example as the terminal shows it."""
    return _in_terminal("explain", SNAPSHOT, EXPLAINED)


def _in_terminal(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        shown = _run(Path(folder), "-m", "snapconv", *arguments)
    return f"```console\n$ snapconv {' '.join(arguments)}\n{shown.rstrip()}\n```"


def answered_queries() -> str:
    """Return the queries with their answers about the example."""
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder), "-m", "snapconv", "to-sqlite", SNAPSHOT, "--extended", "-q", "-o", REPORT)
        with closing(sqlite3.connect(Path(folder) / REPORT)) as connection:
            return "\n\n".join(_answered(connection, *query) for query in QUERIES)


def _answered(connection: sqlite3.Connection, question: str, query: str, needs_extended: bool) -> str:  # noqa: FBT001  # a row of QUERIES
    cursor = connection.execute(query)
    rows = [[column[0] for column in cursor.description], *([str(v) for v in row] for row in cursor)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    where = " (with `--extended`)" if needs_extended else ""
    return "\n".join((f"{question}{where}", "", "```sql", query, "```", "```text", *lines, "```"))


def examples() -> str:
    """Return every program of docs/examples with what it prints about the example."""
    return "\n\n".join(_example(path) for path in sorted((ROOT / "docs" / "examples").glob("*.py")))


def _example(path: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        printed = _run(Path(folder), str(path), SNAPSHOT)
    source = path.read_text(encoding="utf-8").rstrip()
    name = path.relative_to(ROOT).as_posix()
    shown = f"```console\n$ python {name} {SNAPSHOT}\n{printed.rstrip()}\n```"
    return f"### `{name}`\n\n```python\n{source}\n```\n\n{shown}"


def _run(folder: Path, *arguments: str) -> str:
    """Run Python in a folder that has a copy of the example; return what it says."""
    (folder / "fixtures").mkdir()
    for name in {SNAPSHOT, *(word for word in arguments if word.startswith("fixtures/"))} - {CAPTURE}:
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / CAPTURE, folder / CAPTURE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if done.returncode not in (0, 7):  # 7: a limit does not hold, which is an answer
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["-"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PAGES: dict[str, Callable[[], str]] = {
    "reference/schema.md": memory_schema_page,
    "reference/time-schema.md": time_schema_page,
}
GENERATED = (
    *PAGES,
    "reference/cli.md",
    "reference/classification.md",
    "reference/library.md",
    "guide/explain.md",
    "guide/ecosystem.md",
    "guide/answers.md",
    "guide/growth.md",
    "guide/budgets.md",
    "guide/what-if.md",
    "guide/reports.md",
    "guide/exports.md",
)
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "guide/answers.md": {
        "verdict": partial(answered, OOM_SNAPSHOT),
        "summary": partial(answered, "summary", SNAPSHOT, "--at", "iteration:0"),
        "tree": partial(answered, "tree", CAPTURE, "--rows", "12"),
        "oom": partial(answered, "oom", OOM_SNAPSHOT, "--device-total", "200MiB"),
        "fragmentation": partial(answered, "fragmentation", SNAPSHOT),
    },
    "reference/cli.md": {"commands": commands},
    "reference/classification.md": {
        "accuracy": accuracy,
        "evidence": evidence,
        "decisions": decision_rules,
        "rules": frame_rules,
        "optimizers": optimizers,
    },
    "guide/ecosystem.md": {
        "programs": partial(ecosystem_programs, "PROGRAMS"),
        "measured": partial(ecosystem_tables, "about"),
        "cost": partial(ecosystem_tables, "cost"),
        "agreement": partial(ecosystem_tables, "agreement"),
        "refused": partial(ecosystem_programs, "REFUSED"),
    },
    "guide/explain.md": {"session": explained},
    "guide/budgets.md": {
        "diff": partial(answered, "diff", "fixtures/perceptron.pickle", GROWING),
        "check": partial(answered, "check", GROWING, "--max-peak", "80MiB", "--max-growth", "0"),
    },
    "guide/exports.md": {
        "snapshot": partial(
            answered, "export", SNAPSHOT, "--format", "snapshot", "--iterations", "1", "--redact"
        ),
    },
    "guide/growth.md": {"session": partial(answered, "growth", GROWING)},
    "guide/what-if.md": {"session": partial(answered, "what-if", SNAPSHOT, "--capacity", "1.3GiB", *WHAT_IF)},
    "reference/library.md": {"examples": examples},
    "guide/reports.md": {"summary": session, "queries": answered_queries},
    "README.md": {"oom": partial(answered, "oom", OOM_SNAPSHOT)},
}

if __name__ == "__main__":
    main()
