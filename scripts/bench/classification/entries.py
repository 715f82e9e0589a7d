"""The programs that are recorded, by name: those of this folder's ``corpus``, or of an earlier commit.

A program is a script that imports ``end_of_step`` from ``programs``, or a function of a module that
takes a ``Setup`` and yields what it knows after every step. Its group is the one that results.json
has beside it.
"""

import ast
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from programs import OnEnd, Script
from setups import Iterations, Setup

Entry = Callable[[Setup], Iterations] | Script

HERE = Path(__file__).parent / "corpus"
RESULTS = "results.json"
_ECOSYSTEM = Path(__file__).parents[3] / "tests" / "ecosystem" / "programs"
_STAND_INS = {"programs", "own_count", "setups"}
# Programs of tests/ecosystem, as they are, most of them around the libraries of its
# requirements.txt.
LIBRARIES = {
    "lib-gpt2-trainer": "gpt2_trainer.py",
    "lib-llama-bf16": "llama_bf16.py",
    "lib-llama-checkpointing": "llama_checkpointing.py",
    "lib-bert": "bert_classifier.py",
    "lib-t5-adafactor": "t5_adafactor.py",
    "lib-mixtral": "mixtral_trainer.py",
    "lib-whisper": "whisper_finetune.py",
    "lib-lora": "lora_peft.py",
    "lib-accelerate": "accelerate_loop.py",
    "lib-lightning": "lightning_autoencoder.py",
    "lib-lightning-mixed": "lightning_mixed.py",
    "lib-diffusers": "diffusion_latents.py",
    "lib-nanogpt": "nanogpt/train.py",
    "lib-word-language-model": "word_language_model/main.py",
    "lib-dcgan": "dcgan.py",
    "lib-mean-teacher": "mean_teacher.py",
    "lib-master-weights": "master_weights.py",
}
# What is not in results.json has been written since.
_NEW = "new"

# Filled by ``use``; in the order of the folder, libraries last.
ENTRIES: dict[str, Entry] = {}
GROUP_OF: dict[str, str] = {}
# Where the programs lie; their figures lie there too.
FOLDERS: list[Path] = []


def use(folder: Path) -> None:
    """Choose the folder whose programs are the entries."""
    if [folder] == FOLDERS:
        return
    ENTRIES.clear()
    GROUP_OF.clear()
    _forget_modules()
    FOLDERS[:] = [folder]
    ENTRIES.update(_programs_of(folder))
    ENTRIES.update({name: Script(_ECOSYSTEM / file) for name, file in LIBRARIES.items()})
    groups = {
        case["entry"]: case["group"]
        for case in json.loads(results_file().read_text("utf-8"))["cases"]
    }
    GROUP_OF.update({name: groups.get(name, _NEW) for name in ENTRIES})
    GROUP_OF.update(dict.fromkeys(LIBRARIES, "libraries"))


def _forget_modules() -> None:
    """Forget the modules of the folder before: those of another commit have the same names."""
    for folder in map(str, FOLDERS):
        sys.path[:] = [place for place in sys.path if place != folder]
        for name, module in list(sys.modules.items()):
            if str(Path(getattr(module, "__file__", None) or "").parent) == folder:
                del sys.modules[name]


def results_file() -> Path:
    """Return the file with the figures of the chosen programs."""
    return FOLDERS[0] / RESULTS


def groups() -> list[str]:
    """Return the names of all groups, in the order of the entries."""
    return list(dict.fromkeys(GROUP_OF.values()))


def _programs_of(folder: Path) -> Iterator[tuple[str, Entry]]:
    """Find the programs: those of modules, then the scripts."""
    scripts = []
    for path in sorted(folder.rglob("*.py")):
        imported = _imported(path)
        if "end_of_step" in imported.get("programs", ()):
            scripts.append(path)
        elif "Iterations" in imported.get("setups", ()):
            yield from _functions(_module(path))
    yield from ((path.stem.replace("_", "-"), Script(path)) for path in scripts)


def _functions(module: ModuleType) -> Iterator[tuple[str, Entry]]:
    for name, found in vars(module).items():
        function = found.func if isinstance(found, partial) else found
        is_entry = getattr(function, "__annotations__", {}).get("return") == Iterations
        if is_entry and not name.startswith("_") and function.__module__ == module.__name__:
            yield name.replace("_", "-"), found


def _module(path: Path) -> ModuleType:
    """Import a module of programs by its name, as they import each other; our own files come first."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    return importlib.import_module(path.stem)


def _imported(path: Path) -> dict[str, list[str]]:
    """Return the modules that a file imports outside of functions, and the names that it takes of each."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name: [] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.setdefault(node.module, []).extend(alias.name for alias in node.names)
    return found


def needed_libraries(entry: str) -> set[str]:
    """Return what a script imports that does not lie beside it; nothing for the functions of modules."""
    program = ENTRIES[entry]
    if not isinstance(program, Script):
        return set()
    names = {module.partition(".")[0] for module in _imported(program.path)} - _STAND_INS
    return {name for name in names if not program.path.with_name(f"{name}.py").exists()}


def run_entry(
    entry: str,
    setup: Setup,
    on_end: OnEnd,
    *,
    call: Callable[..., Any],
    on_told: OnEnd | None = None,
) -> None:
    """Run the steps of an entry; ``call`` calls its code, ``on_end`` is given what it knows after each."""
    program = ENTRIES[entry]
    if isinstance(program, Script):
        program.run(setup.n_steps, on_end, call=call, on_told=on_told)
        return
    steps = program(setup)
    for _ in range(setup.n_steps):
        on_end(call(next, steps))


use(HERE)
