"""Live stacks -> the JSON that speedscope.app opens: a sampled profile whose weights are bytes."""

from pathlib import Path

from snapconv.answers.live_stacks import LiveStacks
from snapconv.json_text import write_json
from snapconv.units import device_name
from snapconv.version import VERSION

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(temporary: Path, found: LiveStacks) -> None:
    """Write the file; with a profile of all, and one of every category."""
    categories = list(dict.fromkeys(stack.category for stack in found.stacks))
    whole = f"{device_name(found.device)}, live at {found.moment}"
    profiles = [_profile(found, whole, None)]
    profiles += [_profile(found, category, category) for category in categories]
    document = {
        "$schema": _SCHEMA,
        "exporter": f"snapconv {VERSION}",
        "name": whole,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame.label, frame.filename, frame.line) for frame in found.frames]},
        "profiles": profiles,
    }
    temporary.write_bytes(write_json(document) + b"\n")


def _profile(found: LiveStacks, name: str, category: str | None) -> dict[str, object]:
    stacks = [stack for stack in found.stacks if category in (None, stack.category)]
    weights = [stack.block_bytes for stack in stacks]
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [list(stack.frames) for stack in stacks],
        "weights": weights,
    }


def _frame(name: str, filename: str, line: int) -> dict[str, object]:
    place: dict[str, object] = {"file": filename} if filename not in ("", "??") else {}
    return {"name": name, **place, **({"line": line} if line else {})}
