"""What layers of torch.nn keep for backward, from measurements: saved_tensors.tsv beside this file.

``scripts/measure_saved_tensors`` writes that file. It is read when it is first needed.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_suffix(".tsv")
_NEVER, _ONLY_TRAINED = "-", "weights"


@dataclass(frozen=True, slots=True)
class KeptByLayer:
    """The operation that a layer runs, and whether freezing its weights frees what it keeps.

    ``freed_by_freezing``: None where the layer has no weights.
    """

    operation: str
    freed_by_freezing: bool | None


@cache
def kept_by_layers() -> dict[str, KeptByLayer]:
    """Return what is known of layers, by the names of their classes.

    What a layer keeps under conditions that differ is not here.
    """
    lines = [line for line in _FILE.read_text("utf-8").splitlines() if line[:1] != "#"]
    layers = {}
    for line in lines[1:]:
        layer, operation, weights, *conditions = line.split("\t")
        occurring = set(conditions) - {_NEVER}
        if len(occurring) == 1:
            is_freed = occurring == {_ONLY_TRAINED} if weights == "yes" else None
            layers[layer] = KeptByLayer(operation, is_freed)
    return layers
