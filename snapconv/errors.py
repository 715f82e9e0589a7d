"""Every exception that snapconv raises on purpose, with the exit code of the command line.

A message contains what is wrong, where (a path into the file), and what to do next.
"""

# Characters of another program's error, where it stands in a sentence.
MOST_OF_REASON = 300


class SnapconvError(Exception):
    """Anything that snapconv reports without a traceback."""

    exit_code = 1


class InputError(SnapconvError):
    """The input cannot be read or used."""

    exit_code = 3


class NotASnapshotError(InputError):
    """The file is something else than a CUDA memory snapshot."""


class MalformedSnapshotError(InputError):
    """The file is a snapshot, but one of its values cannot be right."""


class TruncatedFileError(InputError):
    """The file ends before the snapshot does."""

    @classmethod
    def of(cls, name: str, n_bytes: int) -> "TruncatedFileError":
        """Return the error for a file or a text that ends after so many bytes, with a remedy."""
        return cls(
            f"{name} breaks off at byte {n_bytes}; the job was probably killed while dumping, or "
            "the copy cut short: copy it again, or dump it again"
        )


class SettingError(InputError):
    """An allocator setting is not as torch reads it.

    ``error_type`` is what torch raises for it in the environment, and ``runtime_type`` for a text
    that a program sets. ``read`` is what torch has read of the value nevertheless.
    """

    def __init__(
        self,
        message: str,
        error_type: type[Exception] = ValueError,
        *,
        runtime_type: type[Exception] | None = None,
        read: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.runtime_type = runtime_type or error_type
        self.read = read


class UnsafePickleError(SnapconvError):
    """The pickle imports or runs code, or requests absurd amounts of memory."""

    exit_code = 4


class OutputError(SnapconvError):
    """A result could not be written."""

    exit_code = 5


class OutputExistsError(OutputError):
    """The output is there already and may not be replaced."""


class OutputWriteError(OutputError):
    """The file system refused the output."""


class RecorderError(SnapconvError):
    """A recording could not be started or finished."""

    exit_code = 6


class TorchMissingError(RecorderError):
    """The Python that runs snapconv has no torch, or one that cannot be imported."""


class NoCudaError(RecorderError):
    """This torch cannot use a GPU here, or not the requested one."""


class NothingAllocatedError(RecorderError):
    """The program allocated nothing on a CUDA device, so that there is nothing to record."""


class EntryPointError(RecorderError):
    """The entry is missing, is no Python, or its providers are not as they must be."""


class BudgetExceeded(SnapconvError):
    """A limit given on the command line is exceeded."""

    exit_code = 7
