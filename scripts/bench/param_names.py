"""Time the naming of weights by a list of parameters, and say how much of it is right: prints a table.

    python scripts/bench/param_names.py              # ten thousand tensors
    python scripts/bench/param_names.py 1000 20000

Models are made up of names and sizes, so what is right is known. A case is one call in this process.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from snapconv.naming.param_names import name_weights
from snapconv.snapshot.recorded.params_file import ParamList

_WIDTH, _FLOAT = 512, 4
_SHARE_LOST = 0.03

Rows = list[tuple[str, int]]


def dense(n_tensors: int) -> Rows:
    """Return a transformer in the order of named_parameters: name and number of elements."""
    rows = [("embedding.weight", 50_000 * _WIDTH)]
    for layer in range(n_tensors // 12):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            rows += _pair(f"layers.{layer}.attn.{name}", _WIDTH * _WIDTH)
        rows += _pair(f"layers.{layer}.norm", _WIDTH)
        rows += [(f"layers.{layer}.mlp.{name}.weight", 4 * _WIDTH * _WIDTH) for name in ("up", "down")]
    return [*rows, ("norm.weight", _WIDTH), ("head.weight", 32_000 * _WIDTH)]


def experts(n_tensors: int) -> Rows:
    """Return a mixture of experts: nearly all tensors have one size."""
    rows: Rows = []
    for layer in range(n_tensors // 193):
        rows.append((f"layers.{layer}.gate.weight", 64 * _WIDTH))
        rows += [
            (f"layers.{layer}.experts.{expert}.w{number}.weight", 2 * _WIDTH * _WIDTH)
            for expert in range(64)
            for number in (1, 2, 3)
        ]
    return rows


def _pair(name: str, n_elements: int) -> Rows:
    return [(f"{name}.weight", n_elements), (f"{name}.bias", _WIDTH)]


def listing(rows: Rows, *, is_ordered: bool = True) -> ParamList:
    """Return the list that a file with these rows gives."""
    names, n_elements = zip(*rows, strict=True)
    everywhere, nowhere = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    counts = np.array(n_elements, np.int64)
    return ParamList(
        path=Path("params.json"),
        names=names,
        n_elements=counts,
        n_bytes=_FLOAT * counts,
        is_floating=everywhere,
        is_buffer=nowhere,
        requires_grad=everywhere,
        is_tied=nowhere,
        is_ordered=is_ordered,
    )


def cases(rows: Rows) -> Iterator[tuple[str, ParamList, Rows, list[int]]]:
    """Find what is listed, and the weights that are there, with their sizes."""
    rng = np.random.default_rng(0)
    sizes = [_FLOAT * n for _, n in rows]
    kept = [row for row in rows if rng.random() > _SHARE_LOST]
    kept_sizes = [_FLOAT * n for _, n in kept]
    mixed = [size if "norm" in name else size // 2 for (name, _), size in zip(rows, sizes, strict=True)]
    by_name = listing(sorted(rows), is_ordered=False)
    yield "all, in order", listing(rows), rows, sizes
    yield "half, norms in full", listing(rows), rows, mixed
    yield "3 % without memory", listing(rows), kept, kept_sizes
    yield "3 % not listed", listing(kept), rows, sizes
    yield "sorted by name", by_name, rows, sizes
    yield "sorted, 3 % without memory", by_name, kept, kept_sizes


def main(counts: list[int]) -> None:
    """Print a table for models of about so many tensors."""
    print("| model | tensors | list | seconds | right | certain | certain but wrong |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for count in counts:
        for make in (dense, experts):
            rows = make(count)
            for case, params, there, sizes in cases(rows):
                began = time.perf_counter()
                found = name_weights(params, np.array(sizes, np.int64), is_placed=True)
                seconds = time.perf_counter() - began
                inferred = zip(found.names, found.is_certain.tolist(), there, sizes, strict=True)
                judged = [(name == real, sure, size) for name, sure, (real, _), size in inferred]
                right = sum(size for is_right, _, size in judged if is_right)
                wrong = sum(size for is_right, sure, size in judged if sure and not is_right)
                shares = (100 * n / sum(sizes) for n in (right, found.certain_bytes, wrong))
                figures = " | ".join(f"{share:.1f} %" for share in shares)
                print(f"| {make.__name__} | {len(rows)} | {case} | {seconds:.2f} | {figures} |", flush=True)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [10_000])
