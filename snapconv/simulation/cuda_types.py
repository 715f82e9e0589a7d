"""Names of types in torch's messages."""

import torch

# The names in torch's messages (c10/core/ScalarType.h); others begin with a capital.
TYPE_NAMES = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
    torch.bfloat16: "BFloat16",
}


def type_name(dtype: torch.dtype) -> str:
    """Return a type's name in torch's messages."""
    return TYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.").capitalize()
