"""A device's number and its name. Imports nothing."""

# torch's own number for pinned host memory (at::CachingHostAllocator, torch 2.14 on), which is on no GPU.
HOST = -1
HOST_NAME = "host"
_MOST_DIGITS = 9


def device_name(device: int) -> str:
    """The name of a device: ``cuda:1``, or ``host`` for pinned host memory."""
    return HOST_NAME if device == HOST else f"cuda:{device}"


def device_argument(device: int) -> str:
    """What names a device on the command line: ``1``, or ``host``."""
    return HOST_NAME if device == HOST else str(device)


def device_kind(device: int) -> str:
    """What kind of device it is, for machines: ``cuda`` or ``host``."""
    return HOST_NAME if device == HOST else "cuda"


def parse_device(text: str) -> int:
    """Read a device as people write it: ``1``, ``cuda:1`` or ``host``; else raises ValueError."""
    if text == HOST_NAME:
        return HOST
    digits = text.removeprefix("cuda:")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise ValueError(f"expected a device's number, such as 0, or {HOST_NAME}, got {text!r}")
    return int(digits)
