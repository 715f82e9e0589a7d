"""Write the parts of docs/ and README.md that come out of the program; a test fails when they differ.

    python scripts/make_docs.py

A page is written by hand, except what stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end
-->``, and the commands that it names itself: ``<!-- run: snapconv … -->``.
"""

import ast
import csv
import inspect
import json
import runpy
import sqlite3
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.docs import json_schemas
from scripts.docs.reference_pages import (
    action_inputs,
    answer_keys,
    code,
    exit_codes,
    json_keys,
    library,
    metadata_keys,
    notes,
    plugin,
    simulated_operations,
    table,
    timing_keys,
    versions,
)
from scripts.docs.schema_pages import memory_schema_page, ranks_schema_page, time_schema_page
from scripts.docs.sessions import PART, ran, with_sessions
from snapconv.answers.advice.look_alikes import LOOK_ALIKES
from snapconv.classification.categories import ABOUT, EVIDENCE_WORTH, Category, Evidence
from snapconv.classification.classify import ORDER as CLASSIFICATION
from snapconv.classification.classify import REASONS
from snapconv.classification.decisions import Fact
from snapconv.cli.app import whole_app
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, FrameRule
from snapconv.torch_knowledge.optimizers import optimizer_rows

ROOT = Path(__file__).parents[1]
SNAPSHOT = "fixtures/training_step.pickle"
REPORT = "training_step.memory.sqlite"
TYPE_WORDS = {Path: "PATH", str: "TEXT", int: "N"}

# (the question, the query, whether it needs --extended): shown in docs/guide/reports.md with their
# answers.
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
    for path in generated_pages():
        path.write_text(page(path), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


def generated_pages() -> list[Path]:
    """Return every page that has a part which the program makes."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += [ROOT / name for name in PAGES if name.endswith(".json")]
    return [
        path
        for path in pages
        if _name(path) in (PAGES.keys() | PARTS.keys())
        or PART.search(path.read_text(encoding="utf-8"))
    ]


def page(path: Path) -> str:
    """Return a page as it must be: all of it made by the program, or its parts."""
    if _name(path) in PAGES:
        return PAGES[_name(path)]()
    return with_sessions(filled(path, PARTS.get(_name(path), {})))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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
    return "\n\n".join(
        _command(info.name, info.callback) for info in whole_app().registered_commands
    )


def _command(name: str | None, callback: Callable[..., Any] | None) -> str:
    assert name
    assert callback
    rows = list(parameters(callback))
    arguments = " ".join(words for words, _, is_option in rows if not is_option)
    usage = f"snapconv {name} [OPTIONS] {arguments}"
    described = table(("what", "meaning"), ((f"`{words}`", text) for words, text, _ in rows))
    return f"### `{usage}`\n\n{inspect.getdoc(callback)}\n\n{described}"


def parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, str, bool]]:
    """Return for every parameter: how it is written, its help, and whether it is an option."""
    for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
        hint = parameter.annotation
        for info in typing.get_args(hint)[1:]:
            if isinstance(info, ArgumentInfo):
                yield (info.metavar or name.upper()), info.help or "", False
            elif isinstance(info, OptionInfo):
                words = _option_words(name, info, typing.get_args(hint)[0])
                yield words, info.help or "", True


def _option_words(name: str, info: ParameterInfo, kind: object) -> str:
    # Inside Annotated, typer takes the first name for the default.
    first = f"--{name.replace('_', '-')}" if info.default is ... else str(info.default)
    names = sorted((first, *(info.param_decls or ())), key=len)
    kinds = [k for k in (kind, *typing.get_args(kind)) if k in TYPE_WORDS]
    value = info.metavar or (TYPE_WORDS[kinds[0]] if kinds else "")
    return f"{', '.join(names)} {value}".rstrip()


def frame_rules() -> str:
    """Return the table of the frame rules, in the order in which they are tried."""
    columns = ("slug", "role", "function", "file", "why", "torch")
    return table(columns, (_rule_cells(rule) for rule in FRAME_RULES))


def _rule_cells(rule: FrameRule) -> tuple[str, ...]:
    function = _pattern(rule.function) + (
        " (outermost Python frame only)" if rule.is_outermost else ""
    )
    role = rule.role.name.lower()
    return _pattern(rule.slug), role, function, _pattern(rule.file), rule.reason, rule.seen


def look_alikes() -> str:
    """Return the table of other explanations of each finding, with the sign that tells them apart."""
    rows = [
        (code(kind) * (number == 0), one.what, one.sign or "none: always likely")
        for kind, others in LOOK_ALIKES.items()
        for number, one in enumerate(others)
    ]
    return table(("finding", "what could look like it", "sign in the file"), rows)


def optimizers() -> str:
    """Return the packages whose optimizers' states are known, as a list."""
    packages = {file.partition("/")[0].removesuffix(".py") for file in optimizer_rows()}
    return ", ".join(f"`{package}`" for package in sorted(packages)) + "\n"


def categories() -> str:
    """Return the table of the categories in the order of their values, `unknown` last."""
    kinds = sorted(Category, key=lambda kind: kind or len(Category))
    return table(
        ("category", "what it means here"),
        ((f"`{one.label}`", ABOUT[one].meaning) for one in kinds),
    )


def evidence() -> str:
    """Return the table of the kinds of evidence, strong ones first and none last."""
    kinds = sorted(EVIDENCE_WORTH, key=lambda kind: kind or len(EVIDENCE_WORTH))
    rows = ((f"`{kind.label}`", *EVIDENCE_WORTH[kind]) for kind in kinds)
    return table(("evidence", "the category follows from", "it is wrong when"), rows)


def decision_rules() -> str:
    """Return the table of the facts and of the other reasons that are no frame rules."""
    facts = [fact for fact in CLASSIFICATION if isinstance(fact, Fact)]
    rows = []
    for slug, reason in REASONS.items():
        mine = [fact for fact in facts if fact.reason.slug == slug]
        categories = dict.fromkeys(fact.category for fact in mine)
        rows.append(
            (f"`{slug}`", _labels(categories), _labels(sorted({f.evidence for f in mine})), reason)
        )
    return table(("rule", "category", "evidence", "reason"), rows)


def _labels(words: Iterable[Category | Evidence]) -> str:
    return ", ".join(f"`{word.label}`" for word in words)


def _pattern(pattern: str) -> str:
    """Set a regular expression as code; a bar would end the cell of a Markdown table."""
    return code(pattern) if pattern else "any"


def ecosystem_tables(name: str) -> str:
    """Return one of the tables of the ecosystem's benchmark, as its last run left its figures."""
    bench = ROOT / "scripts" / "bench" / "ecosystem"
    figures = json.loads((bench / "results.json").read_text(encoding="utf-8"))
    return str(runpy.run_path(str(bench / "tables.py"))[name](figures))


def public_programs() -> str:
    """Return the table of the programs of public repositories, as their last recordings left it."""
    bench = ROOT / "scripts" / "bench" / "ecosystem"
    figures = json.loads((bench / "public.json").read_text(encoding="utf-8"))
    return str(runpy.run_path(str(bench / "tables.py"))["public"](figures))


def distributed_programs() -> str:
    """Return the table of the public programs of several ranks."""
    bench = ROOT / "scripts" / "bench" / "ecosystem"
    figures = json.loads((bench / "distributed.json").read_text(encoding="utf-8"))
    return str(runpy.run_path(str(bench / "tables.py"))["distributed"](figures))


def drawn_programs() -> str:
    """Return the table of the public programs that a commit's hash drew."""
    bench = ROOT / "scripts" / "bench" / "ecosystem"
    programs = json.loads((bench / "drawn.json").read_text(encoding="utf-8"))["programs"]
    with (bench / "drawn.tsv").open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t"))
    return str(runpy.run_path(str(bench / "tables.py"))["drawn"](programs, rows))


def ecosystem_programs() -> str:
    """Return the table of the programs of tests/ecosystem."""
    catalogue = runpy.run_path(str(ROOT / "tests" / "ecosystem" / "catalogue.py"))
    rows = (
        (
            program.name,
            f"`{' '.join((program.file, *program.arguments))}`",
            _first_line(program.path),
        )
        for program in catalogue["PROGRAMS"]
    )
    return table(("program", "in `tests/ecosystem/programs`", "what it is"), rows)


def _first_line(program: Path) -> str:
    """Return the first line of a program's docstring."""
    docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{program}: no docstring says what it is")
    return docstring.splitlines()[0]


def answered_queries() -> str:
    """Return the queries with their answers about the example."""
    with tempfile.TemporaryDirectory() as folder:
        ran(f"snapconv to-sqlite {SNAPSHOT} --extended -q -o {REPORT}", Path(folder))
        with closing(sqlite3.connect(Path(folder) / REPORT)) as connection:
            return "\n\n".join(_answered(connection, *query) for query in QUERIES)


def _answered(
    connection: sqlite3.Connection,
    question: str,
    query: str,
    needs_extended: bool,  # noqa: FBT001  # a row of QUERIES
) -> str:
    cursor = connection.execute(query)
    rows = [
        [column[0] for column in cursor.description],
        *([str(v) for v in row] for row in cursor),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    where = " (with `--extended`)" if needs_extended else ""
    return "\n".join((f"{question}{where}", "", "```sql", query, "```", "```text", *lines, "```"))


# What a program of docs/examples is about, where it is not SNAPSHOT.
EXAMPLE_FILES = {
    "changed_lines.py": "fixtures/perceptron.pickle fixtures/growing.pickle",
    "names_from_sql.py": "fixtures/transformer.capture",
}


def examples() -> str:
    """Return every program of docs/examples with what it prints about the example."""
    return "\n\n".join(_example(path) for path in sorted((ROOT / "docs" / "examples").glob("*.py")))


def _example(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    command = f"python {name} {EXAMPLE_FILES.get(path.name, SNAPSHOT)}"
    with tempfile.TemporaryDirectory() as folder:
        printed = ran(command, Path(folder))
    source = path.read_text(encoding="utf-8").rstrip()
    return f"### `{name}`\n\n```python\n{source}\n```\n\n```console\n$ {command}\n{printed}\n```"


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/ranks-schema.md": ranks_schema_page,
    "docs/reference/schema.md": memory_schema_page,
    "docs/reference/time-schema.md": time_schema_page,
    **{
        f"docs/reference/schemas/{command}.json": partial(json_schemas.schema_text, command)
        for command in json_schemas.COMMANDS
    },
}
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/guide/advise.md": {"look-alikes": look_alikes},
    "docs/guide/reports.md": {"queries": answered_queries},
    "docs/reference/action.md": {"inputs": action_inputs, "plugin": plugin},
    "docs/reference/capture.md": {"metadata": metadata_keys, "timing": timing_keys},
    "docs/reference/classification.md": {
        "categories": categories,
        "evidence": evidence,
        "decisions": decision_rules,
        "rules": frame_rules,
        "optimizers": optimizers,
    },
    "docs/reference/cli.md": {"commands": commands, "exit-codes": exit_codes},
    "docs/reference/ecosystem.md": {
        "programs": ecosystem_programs,
        "measured": partial(ecosystem_tables, "about"),
        "cost": partial(ecosystem_tables, "cost"),
        "agreement": partial(ecosystem_tables, "agreement"),
        "public": public_programs,
        "drawn": drawn_programs,
        "distributed": distributed_programs,
    },
    "docs/reference/json.md": {
        "schemas": json_schemas.schema_links,
        "keys": json_keys,
        "answers": answer_keys,
    },
    "docs/reference/library.md": {"library": library, "examples": examples},
    "docs/reference/notes.md": {"notes": notes},
    "docs/reference/operations.md": {"operations": simulated_operations},
    "docs/reference/stability.md": {"versions": versions},
}

if __name__ == "__main__":
    main()
