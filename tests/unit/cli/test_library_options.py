"""Every option of a command is in the library too, or is listed here with the reason."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import pytest

import snapconv
from snapconv.analysis import AnalysisOptions
from snapconv.answers.check import Budgets
from snapconv.answers.what_if.setting_trials import Request
from snapconv.cli.app import COMMANDS, whole_app
from snapconv.convert import ConvertOptions
from snapconv.ranks.job import JobOptions, read_job
from snapconv.recorder.recording import recording
from snapconv.session import Session, load
from snapconv.writers.fit_table import write_fit_table
from snapconv.writers.sqlite.job_database import write_job_database

OPTIONS = {
    info.name: set(inspect.signature(info.callback).parameters)
    for info in whole_app().registered_commands
}


class Counterpart(NamedTuple):
    """The functions and classes with a command's options, and names that differ there."""

    parts: tuple[Callable[..., object], ...]
    renamed: dict[str, str] = {}  # noqa: RUF012  # never changed


PART = (load, Session.of_device, Session.between)
LOADED = {"snapshot": "path", "include": "includes"}
COUNTERPARTS = {
    "summary": Counterpart((*PART, Session.at), LOADED | {"at": "moment"}),
    "tree": Counterpart((load, Session.of_device, Session.tree), LOADED | {"at": "moment"}),
    "annotate": Counterpart((load, Session.of_device, Session.annotate), LOADED | {"at": "moment"}),
    "oom": Counterpart((load, Session.explain_oom), LOADED | {"no_replay": "replay"}),
    "fragmentation": Counterpart(
        (load, Session.of_device, Session.fragmentation), LOADED | {"at": "moment"}
    ),
    "growth": Counterpart((*PART, Session.growth), LOADED),
    "advise": Counterpart((load, Session.of_device, Session.advise), LOADED),
    "what-if": Counterpart(
        (load, Session.of_device, Session.what_if, Request.read), LOADED | {"setting": "settings"}
    ),
    "explain": Counterpart((load, Session.explain), LOADED),
    "diff": Counterpart((*PART, Session.compared_with), LOADED | {"new": "path"}),
    "check": Counterpart((load, Session.of_device, Session.check, Budgets), LOADED),
    "to-sqlite": Counterpart((snapconv.to_sqlite, ConvertOptions, AnalysisOptions), LOADED),
    "view": Counterpart((*PART, Session.view), LOADED | {"newer": "compared_with"}),
    "export": Counterpart((*PART, Session.export), LOADED),
    "cut": Counterpart((load, Session.of_device, Session.cut), LOADED),
    "ranks": Counterpart(
        (read_job, JobOptions, AnalysisOptions, write_job_database),
        {"include": "includes", "no_cache": "cache", "output": "path"},
    ),
    "fit": Counterpart(
        (snapconv.fit, snapconv.FitOptions, write_fit_table),
        {"world_size": "world_sizes", "arg": "values", "csv": "path"},
    ),
    "watch": Counterpart((recording,), {"all_ranks": "on_other_oom"}),
}
IN_THE_LIBRARY_AS_IT_IS = {
    "verdict": "a notebook shows it for a session by itself",
    "info": "Session.snapshot and Session.notes have its facts",
    "record": "it runs a program from its beginning; a program records itself by recording()",
    "mcp": "it serves agents, who call no library",
}
OF_THE_TERMINAL = {
    "as_json": "answers are objects, with to_json where they need it",
    "top": "answers are sequences, largest first, of which Python takes slices",
    "quiet": "the library prints nothing",
    "color": "the library prints nothing",
    "stack": "the text alone is shorter: an Explanation has whole stacks",
    "format": "the form of the printed text",
    "open_page": "View.open() opens it",
    "message": "text of a log belongs to no file, and so to no session",
}
OF_A_NEW_PROGRAM = {
    "entry": "the program that calls the library runs already",
    "args": "the program that calls the library has them already",
    "is_module": "the program that calls the library runs already",
    "pid": "on_request makes a program answer it; in its own process it calls capture()",
    **dict.fromkeys(
        (
            *("simulate", "no_compute", "routing", "capacity", "cublas_workspace"),
            *("world_size", "nproc_per_node"),
        ),
        "the simulated GPU has to be there before the program imports torch",
    ),
}


def library_names(counterpart):
    return {name for part in counterpart.parts for name in inspect.signature(part).parameters}


@pytest.mark.parametrize("command", COUNTERPARTS)
def test_the_library_has_every_option_of_the_command(command):
    counterpart = COUNTERPARTS[command]
    exceptions = OF_THE_TERMINAL | (OF_A_NEW_PROGRAM if command == "watch" else {})
    lacking = {
        option
        for option in OPTIONS[command] - exceptions.keys()
        if counterpart.renamed.get(option, option) not in library_names(counterpart)
    }
    assert lacking == set()


def test_every_command_has_its_counterpart_or_a_reason():
    assert set(COMMANDS) == COUNTERPARTS.keys() | IN_THE_LIBRARY_AS_IT_IS.keys()
    assert OF_THE_TERMINAL.keys() <= set().union(*OPTIONS.values())
