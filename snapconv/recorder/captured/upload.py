"""Captures -> a store, such as ``s3://bucket/run``: copied by a thread, after the step and never in it.

A capture is written here first, and removed when it is in the store. What cannot be copied stays here, with a
warning that names it.
"""

import queue
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapconv.errors import RecorderError

Tell = Callable[[str], None]


def is_store(output: str) -> bool:
    """Return whether an output is the URL of a store."""
    return "://" in output


class Upload:
    """A thread that copies captures to a URL; ``folder`` is where they are written before.

    Raises RecorderError where fsspec, or the package of the store, is missing.
    """

    def __init__(self, url: str, *, tell: Tell, warn: Tell) -> None:
        self._url, self._tell, self._warn = url.rstrip("/"), tell, warn
        self._store, self._path = _open(self._url)
        self.folder = Path(tempfile.mkdtemp(prefix="snapconv-captures-"))
        self._waiting: queue.Queue[Path | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="snapconv-upload", daemon=True)
        self._thread.start()

    def add(self, capture: Path) -> None:
        """Let a capture be copied; returns at once."""
        self._waiting.put(capture)

    def close(self) -> None:
        """Wait until all are copied."""
        self._waiting.put(None)
        self._thread.join()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def finish(self, capture: Path | None) -> None:
        """Copy a last capture, if there is one, and wait until it is there."""
        if capture is not None:
            self.add(capture)
        self.close()

    def _run(self) -> None:
        while (capture := self._waiting.get()) is not None:
            try:
                self._store.makedirs(f"{self._path}/{capture.name}", exist_ok=True)
                for file in sorted(capture.iterdir()):
                    self._store.put_file(str(file), f"{self._path}/{capture.name}/{file.name}")
            except Exception as error:  # noqa: BLE001  # every store has errors of its own
                self._warn(f"{capture} could not be copied to {self._url}, and stays here: {error}")
                continue
            shutil.rmtree(capture, ignore_errors=True)
            self._tell(f"copied to {self._url}/{capture.name}")


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec

        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise RecorderError(
            f"{url}: pip install 'snapconv[remote]' and the store's package ({error})"
        ) from error
    except Exception as error:  # every store has errors of its own
        raise RecorderError(f"{url}: {error}") from error
    return found[0], found[1].rstrip("/")
