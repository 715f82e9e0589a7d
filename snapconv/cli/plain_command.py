"""Commands whose words are taken as they are: as texts, or as paths that are looked at when they are read.

Typer 0.29 has pydantic convert every word, whose import takes as long as the conversion of a small file.
Where a release of typer has no such converter to put in, its own stays, as it does for numbers and choices.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

_CONVERTER = "_runtime_param"
_CHECKS = ("exists", "readable", "writable", "resolve_path", "allow_dash")


class PlainCommand(TyperCommand):
    """A command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for parameter in self.params:
            _make_plain(parameter)

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, which has a converter too."""
        return _make_plain(super().get_help_option(ctx))


class PlainGroup(TyperGroup):
    """What has the commands: ``snapconv`` itself."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, which has a converter too."""
        return _make_plain(super().get_help_option(ctx))


class _Plain:
    """In the place of typer's converter for one parameter."""

    def __init__(self, make: Callable[[str], object]) -> None:
        self.make = make

    def coerce(self, value: Any, param: Any, ctx: object) -> object:
        """Convert what the command line or a default has, None where it has nothing."""
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        return [self.make(word) for word in value] if is_list else self.make(value)


def _make_plain(parameter: Any) -> Any:
    """Put our converter in, where typer would make one when it is needed; return the parameter."""
    make = _plain_type(parameter)
    if make and getattr(parameter, _CONVERTER, make) is None:
        setattr(parameter, _CONVERTER, _Plain(make))
    return parameter


def _plain_type(parameter: Any) -> Callable[[str], object] | None:
    """The type of a parameter, if that needs no more than to be called."""
    descriptor = getattr(parameter, "type_descriptor", None)
    annotation = getattr(descriptor, "annotation", None)
    if annotation is bool:
        return bool
    if annotation in (str, list[str]):
        return str
    settings = getattr(descriptor, "parameter_info", None)
    if annotation is Path and not any(getattr(settings, check, True) for check in _CHECKS):
        return Path
    return None
