"""What counts as part of the project although it is installed: the models of libraries, and ``--include``."""

import posixpath
from dataclasses import dataclass

from snapconv.stacks.paths import PathMap, installed_part, is_generated, is_under, normal

# The code of somebody's model is here as often as in a project of their own; DeepView counts both as well.
MODEL_LIBRARIES = ("transformers/models", "diffusers/models")


@dataclass(frozen=True, slots=True)
class Include:
    """One ``--include``: ``path`` is a folder or file as recorded, or a package's below site-packages."""

    text: str
    path: str

    def holds(self, path: str) -> bool:
        """Whether a normal path of a Python file lies in it."""
        if is_generated(path):
            return False
        if is_absolute(self.path):
            return path == self.path or is_under(path, self.path)
        installed = installed_part(path)
        if installed is not None:
            return installed in (self.path, f"{self.path}.py") or installed.startswith(f"{self.path}/")
        return f"/{self.path}/" in f"/{path}/" or f"/{path}".endswith(f"/{self.path}.py")


def parse_include(text: str, *, root: str | None, path_maps: tuple[PathMap, ...] = ()) -> Include:
    """Read a package (``timm.models``, ``timm/models``), a path, or one relative to the root (``../lib``)."""
    if text.startswith(".") and root is not None:
        path = posixpath.normpath(posixpath.join(root, text.replace("\\", "/")))
    elif "/" in text or "\\" in text or text.endswith(".py"):
        path = normal(text)
    else:
        path = text.replace(".", "/")
    for path_map in path_maps:
        path = path_map.apply(path)
    return Include(text, path)


def is_absolute(path: str) -> bool:
    """Whether a normal path begins at a root, also one of Windows."""
    return path.startswith("/") or path[1:2] == ":"
