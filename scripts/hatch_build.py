"""Build the compiled core with the wheel, where there is a C compiler.

SNAPCONV_NATIVE chooses: ``auto`` (the default) builds it if that works, ``no`` does not,
``require`` fails without it. The wheel's name says which it is: py3-none-PLATFORM with the core,
which every interpreter may load, since it knows nothing of Python; py3-none-any without. An
editable installation has it in its source.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("snapconv", "native", "src")
LIBRARY = Path("snapconv", "native", "core.dll" if sys.platform == "win32" else "core.so")
FLAGS = ("-std=c11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden")


class CompiledCore(BuildHookInterface):  # type: ignore[misc] # counts as Any
    """Compiles ``snapconv/native/src`` to one shared library."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and let the wheel have it."""
        mode = os.environ.get("SNAPCONV_NATIVE") or "auto"
        if mode not in ("auto", "no", "require"):
            raise ValueError(f"SNAPCONV_NATIVE={mode}: expected auto, no or require")
        if self.target_name != "wheel":
            return
        library = Path(self.root, LIBRARY)
        failure = "as SNAPCONV_NATIVE=no says" if mode == "no" else self._compile(library)
        if failure:
            library.unlink(missing_ok=True)
            if mode == "require":
                raise RuntimeError(f"snapconv's core cannot be built: {failure}")
            self.app.display_info(f"snapconv: pure Python ({failure})")
            return
        self.app.display_info("snapconv: with its compiled core")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(LIBRARY.as_posix())

    def _compile(self, library: Path) -> str:
        """Return why it did not work; empty if it did."""
        compiler = (os.environ.get("CC") or "").split() or self._compilers()
        if not compiler:
            return "there is no C compiler"
        sources = sorted(str(path) for path in Path(self.root, SOURCES).glob("*.c"))
        made = library.with_suffix(f".{os.getpid()}.new")  # others may build it, or have it loaded
        extra = (os.environ.get("CFLAGS") or "").split()
        command = [*compiler, *FLAGS, *extra, "-o", str(made), *sources]
        try:
            done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        except OSError as error:
            return f"{compiler[0]}: {error.strerror}"
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return f"{compiler[0]}: {lines[0]}"
        made.replace(library)
        return ""

    @staticmethod
    def _compilers() -> list[str]:
        return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])
