"""Parameters of a model in use that are not where its others are: forgotten on the CPU, or out of sight.

What is not on a device is in no capture, and its absence must not pass for a small model.
"""

from snapconv.notes import Note
from snapconv.recorder.observe.addresses import locate
from snapconv.recorder.observe.models import Models
from snapconv.recorder.observe.tensors_within import plain_tensors
from snapconv.recorder.torch_types import Tensor
from snapconv.units import counted

_MAX_NAMES = 3


class Elsewhere:
    """Finds where parameters are; ``notes`` has those that were on no device the last time."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._notes: dict[str, Note] = {}

    def look(self) -> None:
        """Look at every model; one with nothing on a device is meant to be elsewhere, or not in use yet."""
        for model, parameters in self._models.named_parameters():
            away = {name: tensor for name, tensor in parameters if not _is_on_a_device(tensor)}
            if away and len(away) < len(parameters):
                self._notes[model] = _note(model, away, len(parameters))
            else:
                self._notes.pop(model, None)

    def notes(self) -> tuple[Note, ...]:
        """One note for each kind of model."""
        return tuple(self._notes.values())


def _is_on_a_device(tensor: Tensor) -> bool:
    """Whether all memory of a tensor is where it can be seen; one without elements, or lazy, has none."""
    return all(locate(piece) is not None or not piece.numel() for piece in plain_tensors(tensor))


def _note(model: str, away: dict[str, Tensor], n_parameters: int) -> Note:
    named = [f"{name} ({_where(tensor)})" for name, tensor in list(away.items())[:_MAX_NAMES]]
    more = [f"{len(away) - _MAX_NAMES} more"] if len(away) > _MAX_NAMES else []
    return Note(
        "parameters-elsewhere",
        f"of the {counted(n_parameters, 'parameter')} of {model}, these are not in the capture: "
        f"{', '.join((*named, *more))}",
    )


def _where(tensor: Tensor) -> str:
    """Say where a tensor claims to be; one that claims a device is of a kind that cannot be looked into."""
    return type(tensor).__name__ if tensor.device.type == "cuda" else f"on {tensor.device}"
