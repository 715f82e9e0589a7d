"""Text for people: bytes, shares, durations, devices, and names that are safe to print."""

import re
from collections.abc import Collection

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
MAX_SHOWN = 80  # characters of a value of a file in a message
# torch's own number for pinned host memory (at::CachingHostAllocator, torch 2.14 on), which is on
# no GPU.
HOST = -1
HOST_NAME = "host"
# Kinds of devices whose name has no number: the last is one that the file does not name.
_UNNUMBERED = (HOST_NAME, "cpu", "device")
_DEVICE = re.compile(r"(?:[a-z]*:)?([0-9]{1,9})")
_TOO_MANY_BYTES = 1 << 60
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])I?B?|B)", re.IGNORECASE)


def format_bytes(n_bytes: int, *, like: int | None = None) -> str:
    """Write a byte count: ``1.50 GiB``, ``512 B``; in the unit that ``like`` has, if given.

    Few bytes in a large unit are ``< 0.01 GiB``, so that only nothing looks like nothing.
    """
    n_bits = int(abs(n_bytes if like is None else like)).bit_length()
    power = min(max(n_bits - 1, 0) // 10, len(_BYTE_UNITS) - 1)
    if power == 0:
        return f"{n_bytes} B"
    number = f"{n_bytes / 1024**power:.2f}"
    return (
        f"{'< 0.01' if n_bytes > 0 and number == '0.00' else number} {_BYTE_UNITS[power]}"
    )


def curve_bytes(name: str, n_bytes: int, lower_bounds: Collection[str]) -> str:
    """Write an amount of a curve, with "at least" if the curve is a lower bound."""
    amount = format_bytes(n_bytes)
    return f"at least {amount}" if name in lower_bounds else amount


def parse_bytes(text: str) -> int:
    """Read a number of bytes: ``24GiB``, ``512 MiB``, ``1.5g``; GB is GiB, as GPUs are sold.

    Raises ValueError for anything else, and for a bare number: ``24`` is never meant as 24 bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(
            f"expected a size with its unit, such as 24GiB or 512MiB, got {text!r}"
        )
    unit = (match[2] or "").upper()
    size = float(match[1]) * 1024 ** _POWERS[unit]
    if size < 1:
        raise ValueError(f"expected more than 0 bytes, got {text!r}")
    if size >= _TOO_MANY_BYTES:
        raise ValueError(f"expected less than 2^60 bytes, got {shortened(text, 40)!r}")
    return int(size)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Write a number of things: ``1 block``, ``2 blocks``; ``plural`` if an s is not enough."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def optional(text: str, value: object) -> str:
    """Write a text with a value in place of its ``{}``; nothing for None and an empty text."""
    return "" if value in (None, "") else text.format(value)


def format_share(part: int, total: int) -> str:
    """Write a part of a total in per cent: ``12.3 %``, ``< 0.1 %``; of nothing, ``0.0 %``."""
    percent = 100 * part / total if total else 0.0
    share = f"{percent:.1f} %"
    return "< 0.1 %" if part and share == "0.0 %" else share


def format_duration_us(duration_us: int) -> str:
    """Write a duration given in microseconds: ``850 us``, ``12.3 ms``, ``4.56 s``."""
    if abs(duration_us) < 1_000:
        return f"{duration_us} us"
    if abs(duration_us) < 1_000_000:
        return f"{duration_us / 1_000:.1f} ms"
    return f"{duration_us / 1_000_000:.2f} s"


def shortened(text: str, n_most: int) -> str:
    """Return the first ``n_most`` characters of a longer text, and the number of the others."""
    if len(text) <= n_most:
        return text
    return f"{text[:n_most]}… ({len(text) - n_most} characters more)"


def printable(text: str) -> str:
    """Escape what a terminal might obey or cannot show: names come from unchecked files."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def shown(text: str) -> str:
    """Return a text of a file for a message: short, and nothing that a terminal obeys."""
    return printable(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")


class Device(int):
    """A device's number in a file, HOST for pinned host memory, with its kind as torch writes it.

    It is a number wherever one is expected. ``kind`` is such as ``cuda``, ``npu`` or ``cpu``.
    """

    kind: str

    def __new__(cls, number: int, kind: str = "cuda") -> "Device":
        """Make a device; pinned host memory has one kind, beside devices of any kind."""
        device = super().__new__(cls, number)
        device.kind = HOST_NAME if number == HOST else kind
        return device


def device_kind(device: int) -> str:
    """Return the kind of a device; a bare number is one of CUDA, or pinned host memory."""
    return (device if isinstance(device, Device) else Device(device)).kind


def device_name(device: int) -> str:
    """Return the name of a device: ``cuda:1``, ``npu:0``, ``cpu``; ``host``: pinned host memory."""
    kind = device_kind(device)
    return kind if kind in _UNNUMBERED else f"{kind}:{device}"


def device_argument(device: int) -> str:
    """Return the argument for a device on the command line: ``1``, or ``host``."""
    return HOST_NAME if device == HOST else str(device)


def parse_device(text: str) -> int:
    """Read a device as people write it: ``1``, ``cuda:1``, ``npu:1`` or ``host``.

    Raises ValueError for anything else.
    """
    if text == HOST_NAME:
        return HOST
    match = _DEVICE.fullmatch(text)
    if not match:
        raise ValueError(
            f"expected a device's number, such as 0, or {HOST_NAME}, got {text!r}"
        )
    return int(match[1])
