"""The pages of docs/ are what the program says, and what they say is so."""

import ast
import json
import pickle
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts import make_docs
from scripts.docs.memory_schema_page import MEMORY_EXAMPLES, memory_schema_page
from snapconv import errors
from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.rule import Rule
from snapconv.classification.rule_order import PIPELINE
from snapconv.cli.app import app, main
from snapconv.replay.history_verdict import Verdict
from snapconv.reports.memory_report import IterationRow
from snapconv.reports.sqlite.extended_memory_schema import EXTENDED_TABLES, EXTENDED_VIEWS
from snapconv.reports.sqlite.skyline_memory import TABLES
from snapconv.reports.sqlite.table_schema import View
from snapconv.session import load
from tests.builders import frame
from tests.report_builder import small_report, write_memory_reports

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "snapconv").rglob("*.py"))
OBJECTS = (*TABLES, *EXTENDED_TABLES, *EXTENDED_VIEWS)
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
COMMANDS = {info.name: info.callback for info in app.registered_commands}


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


def section(text, title):
    """What stands under a heading, up to the next one of its level."""
    return re.split(rf"^{title.split()[0]} ", text.split(f"{title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def rows(text):
    """The rows of the tables in a text, without their headings; code marks are dropped."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").replace("`", "").split(" | ")] for line in lines]
    is_rule = [set("".join(row)) <= set("-| ") for row in cells]
    return [
        row for i, row in enumerate(cells) if not is_rule[i] and not (i + 1 < len(cells) and is_rule[i + 1])
    ]


def squeezed(text):
    return re.sub(r"\s", "", text)


# --- what is generated


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *map(DOCS.joinpath, make_docs.GENERATED)], ids=lambda p: p.name
)
def test_a_page_is_what_the_program_says(path):
    assert path.read_text(encoding="utf-8") == make_docs.page(path), "run: python scripts/make_docs.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_described_options_are_those_of_the_help(command, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    described = list(make_docs.parameters(COMMANDS[command]))
    for words, meaning, is_option in described:
        assert squeezed(meaning) in squeezed(shown)
        for name in re.findall(r"-\S+(?<!,)", words) if is_option else ():
            assert name in shown
    in_help = set(re.findall(r"(?<!\S)--[a-z-]+", section(shown + "\nX:", "Options:"))) - {"--help"}
    assert in_help == {name for words, _, _ in described for name in re.findall(r"--[a-z-]+", words)}


# --- links


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(path):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        page = path.parent / file if file else path
        assert page.exists(), target
        headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target


# --- notes


def calls(path, *names):
    """Calls of functions of these names, whatever object they are called on."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in names:
            yield node


def test_every_note_is_described_and_no_other():
    made = [node.args[0] for path in SOURCES for node in calls(path, "Note", "_count_note") if node.args]
    in_program = {slug.value for slug in made if isinstance(slug, ast.Constant)}
    assert in_program
    described = re.findall(r"^### `([a-z-]+)`", text_of("notes.md"), re.MULTILINE)
    assert sorted(described) == sorted(in_program)


def test_every_note_says_what_it_means_what_it_touches_and_what_to_do():
    for part in text_of("notes.md").split("\n### ")[1:]:
        assert re.findall(r"^\* \*\*(\w+)\*\*:", part, re.MULTILINE) == ["Means", "Affects", "Do"], part


# --- classification


def test_every_reason_of_the_pipeline_is_described_as_its_rules_have_it():
    table = rows(section(text_of("classification.md"), "## The rules that are no frame rules"))
    described = {
        (slug, category, kind)
        for slug, categories, evidence, _ in table
        for category in categories.split(", ")
        for kind in evidence.split(", ")
    }
    made = [rule for rule in PIPELINE if isinstance(rule, Rule)]
    in_program = {(rule.reason.slug, rule.category.label, rule.evidence.label) for rule in made}
    assert in_program <= described
    assert {slug for slug, *_ in described} == {rule.reason.slug for rule in made} | {"none"}


@pytest.mark.parametrize(
    ("title", "words"),
    [("## The categories", Category), ("## What every piece of evidence is worth", Evidence)],
)
def test_every_category_and_evidence_is_described(title, words):
    described = [row[0] for row in rows(section(text_of("classification.md"), title))]
    assert sorted(described) == sorted(word.label for word in words)


def test_every_verdict_is_described():
    table = rows(section(text_of("replay.md"), "## The verdict on the history"))
    assert [row[0] for row in table] == [verdict.value for verdict in Verdict]


# --- exit codes and JSON


def test_the_exit_codes_are_those_of_the_program():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    # 7 belongs to a command that is still to come.
    codes = {str(kind.exit_code) for kind in kinds} - {"7"} | {"0", "2", "129", "130", "141", "143"}
    assert {row[0] for row in rows(section(text_of("cli.md"), "## Exit codes"))} == codes


def flat(value, path="", *, open_at=()):
    """All paths of a JSON value; ``*`` stands for the keys of the objects named in ``open_at``."""
    if isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{'*' if path in open_at else key}".lstrip(".")
            yield from () if path in open_at and not isinstance(item, dict) else (below,)
            yield from flat(item, below, open_at=open_at)
    elif isinstance(value, list):
        for item in value:
            yield from flat(item, f"{path}[]", open_at=open_at)


@pytest.mark.parametrize(
    ("command", "open_at"),
    [
        ("to-sqlite", ("reports[].moments", "reports[].categories_at_peak")),
        ("info", ("devices[].actions", "settings", "annotations")),
    ],
)
def test_the_described_json_is_that_of_the_program(command, open_at, tmp_path, capsys):
    paths = set()
    (tmp_path / "list.json").write_text('{"weight": [250]}')
    main_frame = frame("main", "/home/me/project/a.py", 1)
    called = [frame("_call_impl", "/site-packages/torch/nn/modules/module.py"), main_frame]
    step = [frame("step", "/site-packages/torch/optim/sgd.py"), main_frame]
    for name, frames in (("with", called), ("without", None)):
        model = CachingAllocator()
        for _ in range(4 if frames else 1):  # four iterations that leave something behind, for a leak
            model.malloc(1000, frames=frames)
            model.free(model.malloc(512, frames=step if frames else None), frames=frames and step)
        failed = {"action": "oom", "size": 512, "device_free": 0, "stream": 0, "frames": frames or []}
        raw = model.snapshot()
        raw["device_traces"][0].append(failed)
        (tmp_path / name).write_bytes(pickle.dumps(raw))
        options = (
            ["--params", str(tmp_path / "list.json")] if (command, name) == ("to-sqlite", "with") else []
        )
        assert main([command, str(tmp_path / name), "--json", *options]) == 0
        paths |= set(flat(json.loads(capsys.readouterr().out), open_at=open_at))
    described = [
        row[0]
        for row in rows(section(text_of("cli.md"), f"## JSON of {command}".replace(command, f"`{command}`")))
    ]
    timed = {path for path in described if path.startswith("time.")}  # see test_docs_of_times
    assert sorted(set(described) - timed) == sorted(paths - {f"{path}.*" for path in open_at})


# --- the schema


@pytest.fixture
def report_file(tmp_path):
    """A report whose allocation 1 is made in the first iteration and outlives the second."""
    report = small_report(iterations=(IterationRow(0, 0, 1, 3584, 1), IterationRow(1, 2, 3, 3072, 2)))
    write_memory_reports([(tmp_path / "report.sqlite", report)], extended=True, force=False)
    with closing(sqlite3.connect(tmp_path / "report.sqlite")) as connection:
        yield connection


def test_the_page_describes_every_table_and_view_of_the_file(report_file):
    sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
    in_file = {name for (name,) in report_file.execute(sql)}
    assert set(re.findall(r"^### `(\w+)`$", memory_schema_page(), re.MULTILINE)) == in_file


def described(item):
    """All columns of a table or view, those of the view that continues it included."""
    continued_by = item.continued_by if isinstance(item, View) else None
    return [*item.columns, *(described(continued_by) if continued_by else [])]


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.name)
def test_the_described_columns_are_those_of_the_file(report_file, item):
    info = report_file.execute(f"PRAGMA table_info({item.name})").fetchall()
    assert [column.name for column in described(item)] == [name for _, name, *_ in info]
    if not isinstance(item, View):
        types = [column.sql_type.split()[0] for column in item.columns]
        assert types == [sql_type for _, _, sql_type, *_ in info]
        may_be_null = [column.null is not None for column in item.columns]
        assert may_be_null == [not not_null and not in_key for *_, not_null, _, in_key in info]


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.name)
def test_a_column_that_is_said_to_be_never_null_never_is(report_file, item):
    for column in described(item):
        if column.null is None:
            sql = f"SELECT count(*) FROM {item.name} WHERE {column.name} IS NULL"
            assert report_file.execute(sql).fetchone() == (0,), column.name


@pytest.fixture
def built_report(tmp_path):
    """A report as the program makes it, of a device that allocated once."""
    model = CachingAllocator()
    model.malloc(1000)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(model.snapshot()))
    return load(tmp_path / "run.pickle").report()


def values_on_the_page(table, column):
    part = section(memory_schema_page(), f"### `{table}`").split(f"| `{column}` | is |")[1]
    return [word for row in rows("| x | y |\n" + part) for word in row[0].split(", ") if word != "x"]


def test_the_described_moments_are_those_of_a_report(built_report):
    described = values_on_the_page("snapconv_moments", "name")
    assert sorted(described) == sorted(moment.name for moment in built_report.moments)


def test_the_described_parts_of_the_breakdown_are_those_of_a_report(built_report):
    described = values_on_the_page("snapconv_breakdown", "name")
    assert described == [row.name for row in built_report.breakdown]


def test_the_described_verdicts_are_those_of_the_program():
    described = values_on_the_page("snapconv_report", "history_verdict")
    assert described == [verdict.value for verdict in Verdict]


@pytest.mark.parametrize(
    ("question", "query"), MEMORY_EXAMPLES, ids=[question for question, _ in MEMORY_EXAMPLES]
)
def test_every_query_on_the_page_has_an_answer(report_file, question, query):
    assert query in memory_schema_page()
    assert report_file.execute(query).fetchall()


def test_a_leak_is_what_is_still_in_use_when_the_next_iteration_ends(report_file):
    """Allocation 1 lives from event 0 to event 4; 2 from event 1 to event 2."""
    (query,) = [query for question, query in MEMORY_EXAMPLES if "leak" in question]
    report_file.execute("DELETE FROM snapconv_allocations WHERE id = 3")  # made after both iterations
    assert report_file.execute(query).fetchall() == [(0, "activation", 1, 2048)]
    report_file.execute("UPDATE snapconv_iterations SET last_event = 4 WHERE iteration = 1")
    assert report_file.execute(query).fetchall() == []
    report_file.execute(
        "UPDATE snapconv_allocations SET free_requested_event = NULL, end_event = NULL WHERE id = 1"
    )
    assert report_file.execute(query).fetchall() == [(0, "activation", 1, 2048)]


# Those of time-schema.md ask another report: see test_docs_of_times.
@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.name != "time-schema.md"], ids=lambda p: p.name
)
def test_every_query_of_a_page_runs_as_it_stands(report_file, path):
    for query in re.findall(r"```sql\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        # The program sqlite3 takes what begins with a dash for an option.
        assert query.startswith("SELECT")
        report_file.execute(query).fetchall()
