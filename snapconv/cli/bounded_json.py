"""JSON for machines, in proportion to the file that it is about.

A file repeats a stack, a name or a whole trace for two bytes; what it shows of each device may be the same.
No real file comes near the bound, and of these all is printed.
"""

from collections.abc import Callable

from snapconv.files import most_bytes_of_output
from snapconv.notes import Note
from snapconv.units import shortened

# How many entries of a list, and characters of a text, are tried; what comes first is what is largest.
_TRIED = ((1000, 4000), (300, 1000), (100, 300), (30, 100), (10, 100), (3, 100), (1, 50), (0, 50))
# One entry for each device, of which none is left out.
_OF_DEVICES = ("devices", "reports")


def bounded_text(
    values: object, written: Callable[[object], str], n_bytes: int
) -> tuple[str, tuple[Note, ...]]:
    """Write values as JSON; where that is many times the size of the file, only the first entries of lists.

    ``n_bytes`` is the size of the file, unpacked. The note says what was left out.
    """
    allowed = most_bytes_of_output(n_bytes)
    text = written(values)
    if len(text) <= allowed:
        return text, ()
    for n_items, n_characters in _TRIED:
        text = written(_shortened(values, n_items, n_characters))
        if len(text) <= allowed:
            break
    message = (
        f"of every list only the first {n_items} entries are printed, and of every text {n_characters} "
        "characters: all would be many times the size of the file"
    )
    return text, (Note("left-out", message),)


def _shortened(values: object, n_items: int, n_characters: int) -> object:
    match values:
        case str():
            return shortened(values, n_characters)
        case dict():
            return {
                shortened(str(key), n_characters): [_shortened(one, n_items, n_characters) for one in value]
                if key in _OF_DEVICES and isinstance(value, list)
                else _shortened(value, n_items, n_characters)
                for key, value in values.items()
            }
        case list() | tuple():
            return [_shortened(value, n_items, n_characters) for value in values[:n_items]]
    return values
