"""An input of the campaign -> another one like it: changes to its values, or to its bytes.

The values are those of a pickle or of JSON: plain containers, changed at a random place. What a
pickle repeats by reference stays shared, since that is how a small file gets large contents.
"""

import io
import json
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

MAX_BYTES = 64 << 10
# Around every bound that a column or a container of the format may have.
_BITS = (0, 1, 7, 8, 9, 15, 16, 20, 30, 31, 32, 33, 40, 47, 48, 53, 60, 61, 62, 63, 64, 100)
_TEXTS = (
    *("", "alloc", "free", "free_requested", "free_completed", "segment_map", "segment_unmap"),
    *("segment_alloc", "segment_free", "oom", "snapshot", "workspace_snapshot", "annotate", "inactive"),
    "active_allocated",
    *("active_pending_free", "START", "END", "small", "large", "forward", "backward", "??", "<string>"),
    *("../../x", "/", "C:\\x.py", "a\nb", "\0", "\x1b[2J", "\x7f", "\x9b31m", "\u202e", "\u2028", "\ud800"),
    *("é" * 300, "<script>", "]]>", "'", '"', "%s", "{0}", "a" * 5000, "a/" * 2000, "#1", "0x10000", "1e999"),
)  # fmt: skip
_MOST_COPIES = 3000

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and texts, and nothing that would be imported."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}: only plain values are changed")


def from_pickle(data: bytes) -> Any:
    """Return the values of a pickle."""
    return _PlainUnpickler(io.BytesIO(data)).load()


def to_pickle(value: Any) -> bytes:
    """Return a pickle of values."""
    return pickle.dumps(value, 4)


def to_json(value: Any) -> bytes:
    """Return the JSON of values."""
    return json.dumps(value).encode()


CODECS: dict[str, tuple[Decode, Encode]] = {
    "pickle": (from_pickle, to_pickle),
    "json": (json.loads, to_json),
}


def mutated(
    data: bytes, codec: str | None, random: Random, other: bytes, *, most_bytes: int = MAX_BYTES
) -> bytes:
    """Another input: mostly with other values where ``codec`` can read it, else with other bytes.

    ``other`` is an input of the same kind, of which a part may be taken.
    """
    for _ in range(3):
        made = (
            _with_other_values(data, codec, random, other)
            if codec and random.random() < 0.9
            else None
        )
        made = _with_other_bytes(data, random, other) if made is None else made
        if len(made) <= most_bytes and made != data:
            return made
    return data[: random.randrange(len(data) + 1)]


def _with_other_values(data: bytes, codec: str, random: Random, other: bytes) -> bytes | None:
    """Change some values; None where the input is damaged, or could not be written."""
    decode, encode = CODECS[codec]
    try:
        value, donor = decode(data), decode(other)
        for _ in range(1 + int(random.expovariate(0.7))):
            value = _changed(value, random, donor)
        return encode(value)
    except RecursionError:
        return None
    except Exception:  # noqa: BLE001  # whatever damaged bytes make of the standard readers
        return None


def _changed(value: Any, random: Random, donor: Any) -> Any:
    parent, key = _place(value, random)
    if parent is None:
        return _odd(random, value)
    change = random.choice(_CHANGES)
    change(parent, key, random, _part(random.choice((value, value, donor)), random))
    return value


def _place(value: Any, random: Random) -> tuple[Any, Any]:
    """Walk down from the top to a random depth; the container where the walk ends, and a key of it."""
    parent, key = None, None
    while isinstance(value, dict | list) and value:
        if parent is not None and random.random() < 0.15:
            break
        keys = list(value) if isinstance(value, dict) else range(len(value))
        parent, key = value, random.choice(keys)
        value = parent[key]
    return parent, key


def _part(value: Any, random: Random) -> Any:
    parent, key = _place(value, random)
    return value if parent is None else parent[key]


def _odd(random: Random, before: Any) -> Any:
    """Return a value that may not be expected where ``before`` is."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: random.choice((1, -1)) * (1 << random.choice(_BITS)) + random.choice((-1, 0, 1)),
        lambda: random.choice(_TEXTS),
        lambda: random.choice((None, True, False, 0.5, -1.0, 1e308, float("inf"), float("nan"))),
        lambda: random.choice(([], {}, [[]], [None], {"": 0}, [0] * 50, ())),
        lambda: (
            before + random.choice((-512, -1, 1, 512, before)) if isinstance(before, int) else 0
        ),
        lambda: before * random.choice((2, 20, 200)) if isinstance(before, str) else "x",
        lambda: "".join(
            chr(random.choice((9, 27, 65, 155, 0x301, 0x202E, 0x1F600))) for _ in range(9)
        ),
    )
    return random.choice(kinds)()


def _like(random: Random, before: Any, part: Any) -> Any:
    """Return a value of the same type, so that the input is not refused at once."""
    if type(before) is type(part) and random.random() < 0.5:
        return part
    match before:
        case bool():
            return not before
        case int():
            near = before + random.choice((-512, -1, 1, 512, 1 << 21, before, -before))
            return random.choice((near, near, 1 << random.choice(_BITS), (1 << 47) - 512, 0))
        case float():
            return before * random.choice((-1.0, 0.0, 1e-9, 3.0, 1e9, 1e300))
        case str():
            return random.choice(
                (random.choice(_TEXTS), before * random.choice((2, 200)), before[::-1], before[1:])
            )
        case list():
            return random.choice(
                (before[::-1], before[:1], [], before * 2, sorted(before, key=str))
            )
    return part


# --- changes: each of a key of a container, with a part of this input or another one


def _replace(parent: Any, key: Any, random: Random, _part: Any) -> None:
    parent[key] = _odd(random, parent[key])


def _replace_alike(parent: Any, key: Any, random: Random, part: Any) -> None:
    parent[key] = _like(random, parent[key], part)


def _drop(parent: Any, key: Any, _random: Random, _part: Any) -> None:
    del parent[key]


def _share(parent: Any, key: Any, _random: Random, part: Any) -> None:
    parent[key] = part


def _repeat(parent: Any, key: Any, random: Random, _part: Any) -> None:
    """Return the same value many times: in a list by reference, or a dictionary's under many keys."""
    n = min(_MOST_COPIES, int(2 ** random.uniform(0, 12)))
    if isinstance(parent, list):
        parent[key:key] = [parent[key]] * n
    else:
        parent.update({f"{key}{i}": parent[key] for i in range(n)})


def _repeat_changed(parent: Any, key: Any, random: Random, _part: Any) -> None:
    """Return a row many times, with one of its numbers counting up."""
    row = parent[key]
    numbers = (
        [name for name, value in row.items() if type(value) is int] if isinstance(row, dict) else []
    )
    if not (isinstance(parent, list) and numbers):
        _repeat(parent, key, random, None)
    else:
        name, step = random.choice(numbers), random.choice((1, 512, 1 << 21))
        n = int(2 ** random.uniform(0, 10))
        parent[key:key] = [{**row, name: row[name] + step * i} for i in range(n)]


def _insert(parent: Any, key: Any, _random: Random, part: Any) -> None:
    if isinstance(parent, list):
        parent.insert(key, part)
    else:
        parent[part if isinstance(part, str | int) else "new"] = part


def _enclose(parent: Any, key: Any, random: Random, _part: Any) -> None:
    for _ in range(random.choice((1, 1, 2, 30, 300))):
        parent[key] = [parent[key]] if random.random() < 0.5 else {"a": parent[key]}


def _swap(parent: Any, key: Any, random: Random, _part: Any) -> None:
    other = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[key], parent[other] = parent[other], parent[key]


def _rename(parent: Any, key: Any, random: Random, _part: Any) -> None:
    if isinstance(parent, dict):
        parent[random.choice((*_TEXTS, *parent))] = parent.pop(key)


def _same_everywhere(parent: Any, key: Any, _random: Random, _part: Any) -> None:
    """Let every row have the value of the first, such as one time or one address."""
    rows = parent if isinstance(parent, list) else list(parent.values())
    for row in rows:
        if isinstance(row, dict) and isinstance(rows[0], dict):
            row.update({name: rows[0][name] for name in list(rows[0])[:1]})


_CHANGES = (
    *(_replace_alike,) * 16, *(_repeat,) * 4, *(_repeat_changed,) * 4, *(_replace,) * 2, *(_share,) * 2,
    _drop, _insert, _enclose, _swap, _rename, _same_everywhere,
)  # fmt: skip


# --- changes of bytes


def _with_other_bytes(data: bytes, random: Random, other: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + int(random.expovariate(0.5))):
        at = random.randrange(len(changed) + 1)
        n = min(len(changed) - at, int(2 ** random.uniform(0, 8)))
        kind = random.randrange(6)
        if kind == 0 and n:
            changed[at] = random.randrange(256)
        elif kind == 1 and n:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            del changed[at : at + n]
        elif kind == 3:
            changed[at:at] = changed[at : at + n] * int(2 ** random.uniform(0, 6))
        elif kind == 4:
            start = random.randrange(len(other) + 1)
            changed[at : at + n] = other[start : start + n]
        else:
            changed[at:at] = random.randbytes(random.choice((1, 2, 4, 8)))
    return bytes(changed)
