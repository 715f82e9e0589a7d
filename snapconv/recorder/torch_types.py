"""Names for torch's types in signatures. torch is optional and loaded late, so checkers know them as Any."""

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
Module: TypeAlias = Any
