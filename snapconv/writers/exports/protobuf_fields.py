"""Numbers and bytes -> protobuf's wire format: as much of it as a writer needs.

A library would do the same, but brings a compiled extension that programs of the field pin to versions of
their own. Two kinds of fields are enough: numbers, and whatever has a length.
"""

_VARINT, _LENGTH = 0, 2
_WRAP = 1 << 64


def varint(number: int) -> bytes:
    """Seven bits to a byte, lowest first; a negative number as 64 bits in two's complement."""
    number %= _WRAP
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def number_field(field: int, number: int) -> bytes:
    """Encode a field with an integer, an enumeration or a truth value."""
    return varint(field << 3 | _VARINT) + varint(number)


def bytes_field(field: int, content: bytes) -> bytes:
    """Encode a field with another message, or with packed numbers."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def text_field(field: int, text: str) -> bytes:
    """Encode a field with a text; what UTF-8 has not is escaped."""
    return bytes_field(field, text.encode("utf-8", "backslashreplace"))


def packed_field(field: int, numbers: list[int]) -> bytes:
    """Encode a repeated field of integers."""
    return bytes_field(field, b"".join(map(varint, numbers)))
