"""The pickle opcodes that a plain snapshot may use, as tables indexed by the opcode byte.

Python's pickler writes snapshots with protocols 2 to 5, torch's own C++ pickler with protocol 2
(torch/csrc/jit/serialization/pickler.cpp). Both use containers, strings, numbers and the memo, and
nothing else; whatever else appears was added later. Contains lengths, not meanings.
"""

import pickle

import numpy as np

from snapconv.columns import Int64Column

_FIXED_ARGUMENT_BYTES = {
    pickle.PROTO: 1, pickle.FRAME: 8, pickle.STOP: 0, pickle.MARK: 0, pickle.POP: 0,
    pickle.POP_MARK: 0, pickle.DUP: 0, pickle.NONE: 0, pickle.NEWTRUE: 0, pickle.NEWFALSE: 0,
    pickle.BININT: 4, pickle.BININT1: 1, pickle.BININT2: 2, pickle.BINFLOAT: 8,
    pickle.EMPTY_DICT: 0, pickle.DICT: 0, pickle.SETITEM: 0, pickle.SETITEMS: 0,
    pickle.EMPTY_LIST: 0, pickle.LIST: 0, pickle.APPEND: 0, pickle.APPENDS: 0,
    pickle.EMPTY_TUPLE: 0, pickle.TUPLE: 0, pickle.TUPLE1: 0, pickle.TUPLE2: 0, pickle.TUPLE3: 0,
    pickle.EMPTY_SET: 0, pickle.ADDITEMS: 0,
    pickle.MEMOIZE: 0, pickle.BINPUT: 1, pickle.LONG_BINPUT: 4, pickle.BINGET: 1, pickle.LONG_BINGET: 4,
}  # fmt: skip
_COUNTED_ARGUMENT_PREFIX_BYTES = {
    pickle.SHORT_BINUNICODE: 1, pickle.SHORT_BINBYTES: 1, pickle.SHORT_BINSTRING: 1, pickle.LONG1: 1,
    pickle.BINUNICODE: 4, pickle.BINBYTES: 4, pickle.BINSTRING: 4, pickle.LONG4: 4,
    pickle.BINUNICODE8: 8, pickle.BINBYTES8: 8,
}  # fmt: skip
# Opcodes that name, call or build something: refused with the name of what they import.
CODE_OPCODES = {
    pickle.GLOBAL: "GLOBAL", pickle.STACK_GLOBAL: "STACK_GLOBAL", pickle.INST: "INST",
    pickle.OBJ: "OBJ", pickle.NEWOBJ: "NEWOBJ", pickle.NEWOBJ_EX: "NEWOBJ_EX",
    pickle.REDUCE: "REDUCE", pickle.BUILD: "BUILD", pickle.EXT1: "EXT1", pickle.EXT2: "EXT2",
    pickle.EXT4: "EXT4", pickle.PERSID: "PERSID", pickle.BINPERSID: "BINPERSID",
    pickle.NEXT_BUFFER: "NEXT_BUFFER", pickle.READONLY_BUFFER: "READONLY_BUFFER",
}  # fmt: skip

# What the scan does on meeting an opcode.
PLAIN, SCALAR, COUNTED, FRAME, MEMO_INDEX, TUPLE, STOP, REFUSED = range(8)


def _table(entries: dict[bytes, int], default: int = 0) -> Int64Column:
    table = np.full(256, default, np.int64)
    for opcode, value in entries.items():
        table[opcode[0]] = value
    table.setflags(write=False)
    return table


# Bytes of an opcode with its fixed argument or its length prefix; an unknown byte counts one.
HEAD_BYTES = _table(
    {op: 1 + n for op, n in (_FIXED_ARGUMENT_BYTES | _COUNTED_ARGUMENT_PREFIX_BYTES).items()},
    default=1,
)
PREFIX_BYTES = _table(_COUNTED_ARGUMENT_PREFIX_BYTES)
ROLE = _table(
    dict.fromkeys(_FIXED_ARGUMENT_BYTES, PLAIN)
    | dict.fromkeys((pickle.BININT, pickle.BININT1, pickle.BININT2), SCALAR)
    | dict.fromkeys((pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE), SCALAR)
    | dict.fromkeys(_COUNTED_ARGUMENT_PREFIX_BYTES, COUNTED)
    | {pickle.FRAME: FRAME, pickle.LONG_BINPUT: MEMO_INDEX, pickle.STOP: STOP}
    | dict.fromkeys((pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3), TUPLE),
    default=REFUSED,
)
INTEGER_PREFIX_BYTES = {pickle.LONG1[0]: 1, pickle.LONG4[0]: 4}
STRING_PREFIX_BYTES = {
    op[0]: n for op, n in _COUNTED_ARGUMENT_PREFIX_BYTES.items() if op not in (pickle.LONG1, pickle.LONG4)
}
