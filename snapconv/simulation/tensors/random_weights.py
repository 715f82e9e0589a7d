"""Models whose weights are not at hand, built from their configurations: ``--random-weights``.

The libraries' own loading is tried first. Only what fails because there is no file, or no network to fetch it
by, is built with weights as for training from the beginning; without a configuration the error stays.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from snapconv.notes import Note
from snapconv.recorder.program.own_frames import calls_original
from snapconv.simulation.after_import import after_import
from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.patches import Patches

# Where the errors of an unreachable hub come from that are no OSError.
_NETWORK_PACKAGES = {"httpx", "requests", "urllib3", "huggingface_hub"}
# What from_pretrained takes that names where the configuration is.
_WHERE = ("subfolder", "revision", "cache_dir", "local_files_only", "token", "trust_remote_code")


@contextmanager
def random_weights(machine: Machine, patches: Patches) -> Iterator[None]:
    """Let transformers, diffusers and timm build what they cannot load."""

    def built(name: object) -> None:
        names = [*machine.random_weights, str(name)]
        machine.random_weights = list(dict.fromkeys(names))
        note = Note(
            "random-weights",
            "there are no weights here for "
            f"{', '.join(machine.random_weights)}: random ones stand for them, made from the configuration",
        )
        machine.notes[note.slug] = note

    hooks = {
        "transformers.modeling_utils": lambda module: _patch_transformers(module, patches, built),
        "diffusers.models.modeling_utils": lambda module: _patch_diffusers(module, patches, built),
        "timm.models._builder": lambda module: _patch_timm(module, patches, built),
    }
    with after_import(hooks):
        yield


def _is_absence(error: Exception) -> bool:
    """Whether an error means that a file is not there, or cannot be fetched."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _NETWORK_PACKAGES


def _patch_transformers(module: ModuleType, patches: Patches, built: Callable[[object], None]) -> None:
    """Give from_pretrained an empty state where there is no file: all of it is initialised then."""
    kind = module.PreTrainedModel
    real = kind.from_pretrained.__func__

    @calls_original
    def from_pretrained(cls: Any, /, name: Any = None, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        try:
            return real(cls, name, *args, config=config, **kwargs)
        except Exception as error:
            if not _is_absence(error) or name is None or kwargs.get("state_dict") is not None:
                raise
            found = _configuration_of_transformers(cls, name, config, kwargs)
            if found is None:
                raise
        made = real(cls, None, *args, config=found, state_dict={}, **kwargs)
        built(name)
        return made

    patches.set(kind, "from_pretrained", classmethod(from_pretrained))


def _configuration_of_transformers(cls: Any, name: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    if config is not None and not isinstance(config, (str, bytes)) and hasattr(config, "to_dict"):
        return config
    where = {key: kwargs[key] for key in _WHERE if key in kwargs}
    try:
        return cls.config_class.from_pretrained(config or name, **where)
    except Exception:  # noqa: BLE001  # whatever it is: the error that the program gets is that of the weights
        return None


def _patch_diffusers(module: ModuleType, patches: Patches, built: Callable[[object], None]) -> None:
    kind = module.ModelMixin
    real = kind.from_pretrained.__func__

    @calls_original
    def from_pretrained(cls: Any, /, name: Any, **kwargs: Any) -> Any:
        try:
            return real(cls, name, **kwargs)
        except Exception as error:
            if not _is_absence(error) or kwargs.get("output_loading_info"):
                raise
            where = {key: kwargs[key] for key in _WHERE if key in kwargs}
            try:
                config = cls.load_config(name, **where)
            except Exception:  # noqa: BLE001  # as above
                config = None
            if config is None:
                raise
        made = cls.from_config(config)
        built(name)
        dtype = kwargs.get("torch_dtype")
        return (made.to(dtype) if dtype is not None else made).eval()

    patches.set(kind, "from_pretrained", classmethod(from_pretrained))


def _patch_timm(module: ModuleType, patches: Patches, built: Callable[[object], None]) -> None:
    """Leave a model as timm has built it where its weights cannot be loaded into it."""
    real = module.load_pretrained

    @calls_original
    def load_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
        try:
            real(model, *args, **kwargs)
        except Exception as error:
            if not _is_absence(error):
                raise
            built(type(model).__name__)

    patches.set(module, "load_pretrained", load_pretrained)
