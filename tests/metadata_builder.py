"""A recorder's metadata in plain values, small; its schema: docs/reference/capture.md."""

from typing import Any

Raw = dict[str, Any]


def memory_row(addr: int, n_bytes: int, at_us: int, *, device: int = 0, **fields: Any) -> Raw:
    """Where memory lay at a time; further fields make a gradient, a state or another row of it."""
    place = {"device": device, "addr": addr, "bytes": n_bytes, "noted_us": at_us}
    return place | fields


def parameter(name: str, addr: int, n_bytes: int, at_us: int, **fields: Any) -> Raw:
    """A float32 vector called ``name``."""
    about = {
        "name": name,
        "kind": "parameter",
        "module": name.rpartition(".")[0],
        "shape": [n_bytes // 4],
        "dtype": "float32",
        "frames": [],
    }
    return about | memory_row(addr, n_bytes, at_us) | fields


def phase(name: str, began_us: int, ended_us: int | None, iteration: int = 0) -> Raw:
    """One mark."""
    return {"phase": name, "iteration": iteration, "began_us": began_us, "ended_us": ended_us}


def metadata(**fields: Any) -> Raw:
    """Metadata of a complete recording; ``fields`` add and replace."""
    base = {
        "version": 1,
        "snapconv": "0.1.0",
        "torch": "2.13.0",
        "project_root": "/home/me/project",
        "command": ["train.py", "--fast"],
        "simulated": None,
        "ended": {"how": "complete", "detail": ""},
        "overflowed": False,
        "devices": [],
        "parameters": [],
        "gradients": [],
        "optimizer_states": [],
        "inputs": [],
        "saved": [],
        "phases": [],
        "iterations": [],
    }
    return base | fields
