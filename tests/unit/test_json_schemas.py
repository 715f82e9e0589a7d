"""The JSON Schemas of docs/reference/schemas: valid schemas, that hold for what the commands print."""

import json
from pathlib import Path

import pytest
import typer

from scripts.docs.json_schemas import COMMANDS, json_schema
from snapconv.cli.app import main, whole_app

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
RUNS = {
    "verdict": [("out_of_memory.pickle",), ("several_devices.pickle",), ("segments_only.pickle",)],
    "summary": [("transformer.capture",), ("segments_only.pickle",), ("no_stacks.pickle",)],
    "tree": [("training_step.pickle", "--by", "module,category")],
    "oom": [("out_of_memory.pickle",), ("growing.pickle",), ("--message", "oom.log")],
    "fragmentation": [("out_of_memory.pickle",), ("growing.pickle", "--at", "end")],
    "advise": [("training_step.pickle",), ("out_of_memory.pickle",), ("segments_only.pickle",)],
    "info": [("transformer.capture",), ("torch_2_0.pickle",), ("state_only.pickle",)],
    "growth": [("growing.pickle",), ("training_step.pickle",), ("segments_only.pickle",)],
    "annotate": [("training_step.pickle",)],
    "diff": [("perceptron.pickle", "growing.pickle")],
    "check": [("growing.pickle", "--max-peak", "80GiB", "--max-growth", "1GiB")],
    "what-if": [("training_step.pickle", "--search"), ("out_of_memory.pickle", "--one-stream")],
    "explain": [("training_step.pickle", "#7"), ("transformer.capture", "#36")],
    "to-sqlite": [("transformer.capture",), ("perceptron.pickle", "--force")],
    "ranks": [("growing.pickle", "out_of_memory.pickle", "--no-cache")],
}


def test_every_command_with_json_has_a_schema():
    commands = typer.main.get_command(whole_app()).commands
    printing = {
        name
        for name, command in commands.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert printing == set(COMMANDS)


@pytest.mark.parametrize("command", RUNS)
def test_what_a_command_prints_is_valid(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("oom.log").write_text(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB"
    )
    validator = jsonschema.Draft202012Validator(json_schema(command))
    for words in RUNS[command]:
        for word in words:
            if (FIXTURES / word).exists():
                Path(word).unlink(missing_ok=True)
                Path(word).symlink_to(FIXTURES / word)
        assert main([command, *words, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        problems = [
            f"{'.'.join(map(str, problem.absolute_path))}: {problem.message[:200]}"
            for problem in validator.iter_errors(document)
        ]
        assert problems == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_schema_is_one_and_refuses_what_the_command_never_prints(command):
    schema = json_schema(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert not validator.is_valid({"json_version": 1})
    assert not validator.is_valid({})
    for name in schema["properties"].keys() - {"json_version"}:
        version = schema["properties"]["json_version"]["const"]
        # No key of a document is a number with a fraction.
        assert not validator.is_valid({"json_version": version, name: 0.5}), name


def test_a_device_without_a_key_or_with_another_type_is_refused(tmp_path, capsys):
    assert main(["growth", str(FIXTURES / "growing.pickle"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(json_schema("growth"))
    assert validator.is_valid(document)
    document["devices"][0]["lines"][0]["block_bytes"] = "6 MiB"
    assert not validator.is_valid(document)
    assert main(["tree", str(FIXTURES / "growing.pickle"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(json_schema("tree"))
    assert validator.is_valid(document)
    del document["devices"][0]["nodes"][0]["depth"]
    assert not validator.is_valid(document)
