"""Our converters give what typer's give, and spare its import of pydantic."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from snapconv.cli.app import app_with
from snapconv.cli.plain_command import PlainCommand, PlainGroup

ROOT = Path(__file__).parents[3]
APP = app_with()
COMMANDS = typer.main.get_command(APP).commands
LINES = [
    "a.pickle",
    "a.pickle --output b.sqlite --extended",
    "./folder/../a.pickle --include timm --include torchvision --path-map /a=/b",
    "folder --device 1 --project-root '' --rules rules.toml --params ../p.json -q",
    "-- --odd",
    "",
    "a.pickle b.pickle",
    "a.pickle --extended=yes",
    "a.pickle --output",
]


def parsed(cls, line, monkeypatch):
    """What a command of this class makes of a line: its parameters, or its error."""
    command = COMMANDS["to-sqlite"]
    made = typer.main.get_command_from_info(
        next(info for info in APP.registered_commands if info.name == "to-sqlite"),
        pretty_exceptions_short=True,
        rich_markup_mode=None,
    )
    assert isinstance(made, PlainCommand)
    if cls is TyperCommand:
        for parameter in made.params:
            parameter._runtime_param = None
        monkeypatch.setattr(PlainCommand, "get_help_option", TyperCommand.get_help_option)
    try:
        with made.make_context("to-sqlite", line.replace("''", "").split(" ") if line else []) as context:
            return context.params
    except Exception as error:  # noqa: BLE001  # of typer's own copy of click
        return type(error), str(error), command.name


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_parsed_as_by_typer(line, monkeypatch):
    assert parsed(PlainCommand, line, monkeypatch) == parsed(TyperCommand, line, monkeypatch)


def test_every_command_that_reads_a_file_is_plain():
    assert isinstance(typer.main.get_command(APP), PlainGroup)
    assert issubclass(PlainGroup, TyperGroup)
    others = {name for name, command in COMMANDS.items() if not isinstance(command, PlainCommand)}
    assert others == {"record"}


@pytest.mark.parametrize("command", ["to-sqlite", "info", "verdict"])
def test_a_conversion_loads_no_pydantic(command, tmp_path):
    file = ROOT / "fixtures" / "out_of_memory.pickle"
    output = ["-o", str(tmp_path / "o.sqlite")] if command == "to-sqlite" else []
    program = (
        "import sys\nfrom snapconv.cli.app import main\n"
        f"code = main({[command, str(file), *output]!r})\n"
        "sys.exit(code or 'pydantic' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0
