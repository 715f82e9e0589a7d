"""The pages of docs/ are what the program says, and what they say is so."""

import ast
import json
import re
from pathlib import Path

import pytest
import typer.main

from scripts import make_docs
from scripts.docs import catalogs
from scripts.docs.reference_pages import EXIT_CODES
from snapconv import errors
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.classify import REASONS
from snapconv.cli.app import main, whole_app
from snapconv.cli.terminal import JSON_VERSION
from snapconv.replay.history_verdict import Verdict
from tests.builders import TraceBuilder, frame
from tests.faulty_jobs import steps_that_collect

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "snapconv").rglob("*.py"))
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
FIXTURES = ROOT / "fixtures"
COMMANDS = {info.name: info.callback for info in whole_app().registered_commands}


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


def section(text, title):
    """What stands under a heading, up to the next one of its level."""
    return re.split(
        rf"^{title.split()[0]} ", text.split(f"{title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE
    )[0]


def rows(text):
    """The rows of the tables in a text, without their headings; code marks are dropped."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [
        [cell.strip() for cell in line.strip("|").replace("`", "").split(" | ")] for line in lines
    ]
    is_rule = [set("".join(row)) <= set("-| ") for row in cells]
    return [
        row
        for i, row in enumerate(cells)
        if not is_rule[i] and not (i + 1 < len(cells) and is_rule[i + 1])
    ]


def squeezed(text):
    return re.sub(r"\s", "", text)


# --- what is generated


def test_no_page_has_a_placeholder():
    """Settings stand in capitals with an underscore; OWNER and the like are for nobody to type."""
    placeholder = re.compile(r"\b(OWNER|TODO|FIXME|TBD|XXX)\b")
    pages = (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "action.yml")
    assert [
        (page.name, match[0])
        for page in pages
        for match in placeholder.finditer(page.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize("path", make_docs.generated_pages(), ids=lambda path: path.stem)
def test_a_page_is_what_the_program_says(path):
    assert path.read_text(encoding="utf-8") == make_docs.page(path), (
        "run: python scripts/make_docs.py"
    )


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
    assert in_help == {
        name for words, _, _ in described for name in re.findall(r"--[a-z-]+", words)
    }


# --- notes


def calls(path, *names):
    """Calls of functions of these names, whatever object they are called on."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in names:
            yield node


def test_every_note_is_described_and_no_other():
    made = [
        node.args[0]
        for path in SOURCES
        for node in calls(path, "Note", "_count_note", "_note")
        if node.args
    ]
    in_program = {slug.value for slug in made if isinstance(slug, ast.Constant)}
    described = {meaning.slug for meaning in catalogs.note_meanings()}
    assert in_program
    assert in_program <= described
    # The others stand in tables of notes.
    texts = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert {slug for slug in described if f'"{slug}"' not in texts} == set()


# --- classification


def test_every_reason_of_the_classification_is_described():
    table = rows(section(text_of("reference/classification.md"), "## The rules"))
    # The cells of a row are read without their marks of code.
    assert {row[0]: row[-1] for row in table} == {
        slug: text.replace("`", "") for slug, text in REASONS.items()
    }


@pytest.mark.parametrize(
    ("title", "words"),
    [("## The categories", Category), ("## What every piece of evidence is worth", Evidence)],
)
def test_every_category_and_evidence_is_described(title, words):
    described = [row[0] for row in rows(section(text_of("reference/classification.md"), title))]
    assert sorted(described) == sorted(word.label for word in words)


def test_every_verdict_is_described():
    table = rows(section(text_of("design/replay.md"), "## The verdict on the history"))
    assert [row[0] for row in table] == [verdict.value for verdict in Verdict]


# --- exit codes and JSON


def test_the_exit_codes_are_those_of_the_program():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    codes = {kind.exit_code for kind in kinds} | {0, 2, 129, 130, 141, 143}
    assert set(EXIT_CODES) == codes


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


def called_twice():
    """A line that two others call."""
    trace = TraceBuilder().segment(64 << 20)
    for line in (3, 4):
        stack = [frame("make", "/w/proj/model.py", 9), frame("main", "/w/proj/train.py", line)]
        trace.alloc(1 << 20, frames=stack)
    return trace


@pytest.mark.parametrize(
    ("command", "runs", "open_at"),
    [
        (
            "to-sqlite",
            (("out_of_memory.pickle",), ("user_metadata.pickle",), ("transformer.capture",)),
            ("reports[].categories_at_peak",),
        ),
        (
            "info",
            (("growing.pickle",), ("no_stacks.pickle",)),
            ("devices[].actions", "settings", "annotations"),
        ),
        ("growth", (("growing.pickle",), ("out_of_memory.pickle",), ("garbage.pickle",)), ()),
        (
            "what-if",
            (("growing.pickle", "--search"), ("out_of_memory.pickle", "--search")),
            (),
        ),
        (
            "diff",
            (
                ("perceptron.pickle", "growing.pickle"),
                ("windows_paths.pickle", "perceptron.pickle"),
            ),
            (),
        ),
        ("annotate", (("growing.pickle",), ("called.pickle",)), ()),
        ("check", (("growing.pickle", "--max-peak", "1GiB"),), ()),
        (
            "explain",
            (
                ("training_step.pickle", "#100"),
                ("user_metadata.pickle", "#1"),
                ("additions/snapkit.pickle", "#2"),
                ("transformer.capture", "#36"),
            ),
            (
                *("allocations[].lifetime.free_requested", "allocations[].lifetime.free_completed"),
                *("allocations[].origin.free_stack[]", "allocations[].verdict.others[]"),
            ),
        ),
        (
            "ranks",
            (
                ("growing.pickle", "out_of_memory.pickle", "--no-cache"),
                ("ranks", "--no-cache", "--mesh", "dp=4,tp=2"),
            ),
            ("files[].coordinates", "files[].devices[].categories", "files[].devices[].faults"),
        ),
    ],
)
def test_the_described_json_is_that_of_the_program(
    command, runs, open_at, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in {word for run in runs for word in run if (FIXTURES / word).exists()}:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).symlink_to(FIXTURES / name)
    steps_that_collect().trace.write(tmp_path / "garbage.pickle")
    called_twice().write(tmp_path / "called.pickle")
    paths = set()
    for run in runs:
        assert main([command, *run, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document.pop("json_version") == JSON_VERSION
        paths |= set(flat(document, open_at=open_at))
    described = [key.path for key in catalogs.json_keys()[command]]
    assert sorted(described) == sorted(paths - {f"{path}.*" for path in open_at})


# --- commands that pages show


def shown_commands(path):
    """The commands of snapconv in blocks and in code of a page; what a shell adds is cut off."""
    text = path.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```(?:sh|console|yaml)?\n(.*?)```", text, re.DOTALL))
    lines = re.findall(r"^(?:- run: |\$ )?(snapconv .*)$", blocks, re.MULTILINE)
    lines += re.findall(
        r"(?<!`)`(snapconv [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    return [re.split(r" #| \||; |…", line)[0] for line in lines]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_of_a_page_is_one_with_these_options(path):
    known_commands = typer.main.get_command(whole_app()).commands
    for line in shown_commands(path):
        _, name, *words = f"{line} ".split(" ")
        if name not in known_commands:  # a file alone: the verdict
            assert name.isupper() or name == "--version" or "." in name or name.endswith("/"), line
            continue
        known = {
            option for parameter in known_commands[name].params for option in parameter.opts
        } | {"--help"}
        # A program follows, or the line of its launcher.
        end = next((i for i, word in enumerate(words) if word in ("--", "train.py")), None)
        own = words[:end]
        assert [word for word in own if word.startswith("--") and word not in known] == [], line
