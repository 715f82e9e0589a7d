"""Whether a library's average of the weights is updated on the device: a second model lies there."""

from snapconv.classification.features import Features
from snapconv.stacks.stack_roles import frames_of_function

# The functions that update one, from outside of optimizers. They allocate only where the average itself is.
_UPDATES = (
    ("update_parameters", "torch/optim/swa_utils.py"),  # AveragedModel; Lightning's callbacks call it
    ("step", "diffusers/training_utils.py"),  # EMAModel
    ("update", "timm/utils/model_ema.py"),  # ModelEma, ModelEmaV2, ModelEmaV3
)


def averages_are_updated(features: Features) -> bool:
    """Whether any event is of an update."""
    frames = features.roles.stacks.frames
    return any(frames_of_function(frames, function, file).any() for function, file in _UPDATES)
