"""The allocator's settings, and the size rules that depend on nothing else.

They are read from the text of PYTORCH_ALLOC_CONF and from a snapshot. Has no blocks, pools or
addresses. The rules are those of torch 2.1 to 2.15; each names its place in torch.
replay/rounding.py has them for columns.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from snapconv.errors import SettingError
from snapconv.torch_knowledge.allocator_options import (
    KINDS,
    LITERALS,
    NEWEST_RELEASE,
    OPTIONS,
    AllocatorOption,
    SettingsGrammar,
    grammar_of,
    is_known,
)
from snapconv.torch_knowledge.backends import conf_of, cuda_conf_of

KIB = 1024
MIB = 1024 * KIB

# c10/core/AllocatorConfig.h (before 2.9: the head of c10/cuda/CUDACachingAllocator.cpp).
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB  # the largest rounded request that the small pools serve
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_OWN_SEGMENT_BYTES = 10 * MIB  # from here on, a request gets a segment of its own size
SEGMENT_GRANULE_BYTES = 2 * MIB
# torch_npu adds these to every request (round_size in NPUCachingAllocator.cpp).
NPU_PADDING_BYTES = 32

N_ROUNDUP_INTERVALS = 16  # 1 MiB, 2 MiB, 4 MiB … 32 GiB and above
NO_ROUNDUP = (0,) * N_ROUNDUP_INTERVALS
# The keys of the intervals in a snapshot.
ROUNDUP_KEYS = tuple(str(1 << i) for i in range(N_ROUNDUP_INTERVALS))
_MAX_UNSIGNED = 2**64 - 1
_NEWEST = grammar_of(NEWEST_RELEASE)
# The first digits of a longer number are too large as well.
_INTEGER = re.compile(r"\s*([+-]?)0*(\d{1,21})", re.ASCII)
_NUMBER = re.compile(r"\A\s*[+-]?(?:\.?\d|nan|inf)", re.ASCII | re.IGNORECASE)
# How a value of a kind begins; of other kinds with digits.
_BEGINNINGS = {
    "switch": re.compile("."),
    "backend": re.compile("."),
    "fraction": _NUMBER,
    "threshold": _NUMBER,
    "reserves": re.compile(r"\["),
}
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Everything that PYTORCH_ALLOC_CONF can change about where blocks go.

    ``max_split_size_bytes`` None means unlimited. ``roundup_power2_divisions`` has one entry per
    power of two from 1 MiB on; 0 and 1 switch the rounding off. ``padding_bytes`` are added to
    every request before it is rounded: 0 in torch, 32 in torch_npu. ``memory_fraction`` is the part
    of the device that the process may have; less than 1 and a ``garbage_collection_threshold``
    above 0 switch the collection of unused segments on. ``conf`` is the text that the settings come
    from, ``cuda_conf`` that of options of CUDA alone where it is another one. ``shown`` has what
    else a snapshot shows of them, by its keys there.
    """

    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    roundup_power2_divisions: tuple[int, ...] = NO_ROUNDUP
    expandable_segments: bool = False
    padding_bytes: int = 0
    memory_fraction: float = 1.0
    garbage_collection_threshold: float = 0.0
    conf: str = ""
    cuda_conf: str | None = None
    shown: tuple[tuple[str, object], ...] = field(default=(), compare=False)

    @classmethod
    def from_conf(cls, conf: str) -> "AllocatorSettings":
        """Read the text of PYTORCH_ALLOC_CONF; see ``changed``."""
        return cls().changed(conf)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], release: str
    ) -> "AllocatorSettings":
        """Read the variables as a CUDA build of a release does.

        Raises SettingError where it refuses them. The allocator of cudaMallocAsync uses none.
        """
        conf = conf_of(environment, release)
        cuda_conf = cuda_conf_of(environment, release)
        if _is_async(cuda_conf, grammar_of(release)):
            return cls()
        settings, error = cls(cuda_conf=cuda_conf).after(conf, release)
        if error:
            raise error
        return settings

    def after(
        self, conf: str, release: str
    ) -> tuple["AllocatorSettings", SettingError | None]:
        """Return these settings once a release of torch has read a text, and why it refuses it.

        It then keeps what it read until there.
        """
        grammar = grammar_of(release)
        settings = replace(self, conf=conf)
        try:
            for name, text in _read_pairs(conf, settings.cuda_conf, release, grammar):
                settings = settings._with(name, text, grammar)
        except SettingError as error:
            if error.read is not None:
                settings = replace(settings, roundup_power2_divisions=error.read)
            return settings, error
        return settings, None

    def reconfigured(
        self, conf: str, release: str
    ) -> tuple["AllocatorSettings", SettingError | None]:
        """Return these settings once a program has set a text at run time; see ``after``.

        Of what it does not name only limits and divisions go back to their defaults.
        """
        defaults = AllocatorSettings()
        reset = {name: getattr(defaults, name) for name in _RESET}
        return replace(self, cuda_conf=None, **reset).after(conf, release)

    def changed(
        self,
        conf: str,
        *,
        skipped: tuple[type[Exception], ...] = (),
        grammar: SettingsGrammar = _NEWEST,
    ) -> "AllocatorSettings":
        """Return these settings with those replaced that a text as in PYTORCH_ALLOC_CONF names.

        Options that no torch has are skipped. Raises SettingError for a value that torch refuses,
        unless such a value alone is to be skipped.
        """
        settings = replace(self, conf=conf)
        pairs = [pair for pair in split_conf(conf, grammar) if pair[0] in OPTIONS]
        # The size of large segments is read first: others depend on it.
        for name, text in sorted(pairs, key=lambda pair: pair[0] != _READ_FIRST):
            with suppress(*skipped):
                settings = settings._with(name, text, grammar)
        return settings

    def _with(self, name: str, text: str, grammar: SettingsGrammar) -> "AllocatorSettings":
        """Return these settings with one option read."""
        value = _read(name, text, self, grammar)
        settings = replace(self, **dict.fromkeys(_FIELDS.get(name, ()), value))
        option = OPTIONS[name]
        if option.shown:
            shown = _signed(value) if option.kind == "size" else value
            settings = replace(
                settings, shown=tuple({**dict(self.shown), option.shown: shown}.items())
            )
        return settings

    def conf_with(self, conf: str) -> str:
        """Return the text of these settings with those replaced that another text names.

        A list of divisions changes a part of those before it: these stay.
        """
        changes = split_conf(conf)
        replaced = {name for name, text in changes if not text.startswith("[")}
        unchanged = [pair for pair in split_conf(self.conf) if pair[0] not in replaced]
        return ",".join(":".join(pair) for pair in unchanged + changes)

    def round_size(self, n_bytes: int) -> int:
        """Round a request up to a block size (round_size in CUDACachingAllocator.cpp)."""
        n_bytes += self.padding_bytes
        if n_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        # All below 2 MiB falls into the first interval, all from 32 GiB into the last.
        interval = min(
            max(n_bytes.bit_length() - MIB.bit_length(), 0), N_ROUNDUP_INTERVALS - 1
        )
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and n_bytes > MIN_BLOCK_BYTES * divisions:
            # The space between two powers of two has so many equal steps, of 512 bytes or more.
            return round_up(n_bytes, (1 << (n_bytes.bit_length() - 1)) // divisions)
        return round_up(n_bytes, MIN_BLOCK_BYTES)

    def segment_size(self, block_bytes: int) -> int:
        """Return the size of the cudaMalloc that serves a rounded request (get_allocation_size)."""
        if block_bytes <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return round_up(block_bytes, SEGMENT_GRANULE_BYTES)

    def page_size(self, *, is_small: bool) -> int:
        """Return the granule in which an expandable segment of that pool grows."""
        return SMALL_SEGMENT_BYTES if is_small else self.large_segment_bytes

    def should_split(self, free_bytes: int, block_bytes: int, *, is_small: bool) -> bool:
        """Return whether the rest of a free block is cut off and kept (should_split).

        The setting counts, not the segment: with expandable segments switched on, an existing
        ordinary segment is split as finely.
        """
        remaining = free_bytes - block_bytes
        if is_small or self.expandable_segments:
            return remaining >= MIN_BLOCK_BYTES
        return not self.is_oversize(block_bytes) and remaining > SMALL_REQUEST_BYTES

    def is_oversize(self, n_bytes: int) -> bool:
        """Return whether a size is at or above max_split_size."""
        return (
            self.max_split_size_bytes is not None and n_bytes >= self.max_split_size_bytes
        )

    def as_snapshot(self) -> dict[str, object]:
        """Write the settings as the ``allocator_settings`` of torch 2.13."""
        limit = self.max_split_size_bytes
        divisions = dict(zip(ROUNDUP_KEYS, self.roundup_power2_divisions, strict=True))
        values: dict[str, object] = {
            "PYTORCH_CUDA_ALLOC_CONF": self.conf,
            "max_split_size": -1 if limit is None else _signed(limit),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": divisions,
            "max_round_threshold": -1,
            "max_cached_size": -1,
        }
        return {**values, **dict(self.shown)}


def _signed(number: int) -> int:
    """Return 64 unsigned bits as a snapshot has them."""
    return number - (number >> 63 << 64)


def round_up(n_bytes: int, granule: int) -> int:
    """Return the least multiple of a granule that is no smaller."""
    return -(-n_bytes // granule) * granule


def split_conf(conf: str, grammar: SettingsGrammar = _NEWEST) -> list[tuple[str, str]]:
    """Split a text into keys and values, as ConfigTokenizer of torch 2.10 and newer by default.

    It leaves out all spaces, even in a word, and takes anything for the colon and the comma.
    """
    return grammar.entry.findall(_strip_spaces(conf, grammar))


def _strip_spaces(conf: str, grammar: SettingsGrammar) -> str:
    return conf.translate(dict.fromkeys(map(ord, grammar.spaces)))


def require_taken(conf: str, release: str) -> None:
    """Raise SettingError where a release of torch refuses a text for CUDA.

    The allocator of cudaMallocAsync reads nothing.
    """
    if not _is_async(conf, grammar_of(release)):
        _, error = AllocatorSettings().after(conf, release)
        if error:
            raise error


def _read_pairs(
    conf: str, cuda_conf: str | None, release: str, grammar: SettingsGrammar
) -> Iterator[tuple[str, str]]:
    """Yield keys and values in the order in which a release of torch reads them.

    From torch 2.10 on, the size of large segments is read first, then what is of all devices, then
    what is of CUDA, from ``cuda_conf`` where that is another text. Raises SettingError where
    reading stops.
    """
    if grammar.is_strict:
        yield from _strict_pairs(conf, release, grammar)
        return
    tokens = _TOKEN.findall(_strip_spaces(conf, grammar))
    for i, token in enumerate(tokens):
        # It is found also where no key is expected.
        if token == _READ_FIRST and is_known(_READ_FIRST, release):
            yield token, "".join(tokens[i + 2 : i + 3])
    texts = (conf, conf if cuda_conf is None else cuda_conf)
    for is_of_cuda, text in enumerate(texts):
        for name, value in split_conf(text, grammar):
            option = _known_option(name, release)
            if option.is_of_cuda == is_of_cuda:
                if name != _READ_FIRST:
                    yield name, value
            elif not value or (value.startswith("[") and not value.endswith("]")):
                # The value is skipped, which fails too.
                raise _refused(name, KINDS[option.kind][1], value)


def _strict_pairs(
    conf: str, release: str, grammar: SettingsGrammar
) -> Iterator[tuple[str, str]]:
    """Yield keys and values; a fault in the text after them stops reading there."""
    text = _strip_spaces(conf, grammar)
    position = 0
    while position < len(text):
        pair = grammar.pair.match(text, position)
        if pair:
            _known_option(pair[1], release)
            yield pair[1], pair[2]
            position = pair.end() + 1
        if not pair or text[position - 1 : position] not in ("", ","):
            raise SettingError(
                f"allocator settings: torch {release} refuses {conf!r}: before 2.10 it takes "
                "key:value pairs with commas between them"
            )


def _known_option(name: str, release: str) -> AllocatorOption:
    if not is_known(name, release):
        raise SettingError(f"allocator settings: torch {release} has no option {name!r}")
    return OPTIONS[name]


def _is_async(conf: str, grammar: SettingsGrammar) -> bool:
    """Return whether torch takes the allocator of cudaMallocAsync when it is loaded.

    The first backend decides, before torch 2.10 the first that it knows, in a grammar of its own.
    """
    if not grammar.is_strict:
        backends = [value for name, value in split_conf(conf) if name == "backend"]
    else:
        words = [re.split(":+", word) for word in re.split(r"[ \t\n\v\f\r,]+", conf)]
        backends = [word[1] for word in words if word[0] == "backend" and word[1:]]
        backends = [name for name in backends if name in ("native", "cudaMallocAsync")]
    return backends[:1] == ["cudaMallocAsync"]


def _read(
    name: str, text: str, settings: AllocatorSettings, grammar: SettingsGrammar = _NEWEST
) -> Any:
    """Read one value as torch does, beside settings that are read already."""
    kind = OPTIONS[name].kind
    pattern, expected = KINDS[kind]
    value = pattern.fullmatch(text)
    if value is None:
        raise _refused(name, expected, text)
    if kind in _READERS:
        return _READERS[kind](name, value[1], settings, grammar)
    return LITERALS.get(value[1], value[1])


def _refused(name: str, expected: str, text: object) -> SettingError:
    message = f"allocator settings: {name} must be {expected}, got {text!r}"
    begins = _BEGINNINGS.get(OPTIONS[name].kind, _INTEGER)
    if not isinstance(text, str) or begins.match(text):
        return SettingError(message)
    # Where no value of the kind begins, a conversion or an assertion of torch's fails.
    is_conversion = bool(text) and begins in (_INTEGER, _NUMBER)
    runtime_type = ValueError if is_conversion else RuntimeError
    return SettingError(message, RuntimeError, runtime_type=runtime_type)


def _size(
    name: str, text: str, settings: AllocatorSettings, grammar: SettingsGrammar
) -> int:
    minimum = OPTIONS[name].minimum
    minimum = minimum or settings.large_segment_bytes // MIB + grammar.extra_mib
    megabytes = _integer(name, text, grammar.max_integer)
    if megabytes < minimum:
        raise _refused(name, f"{minimum} or more", megabytes)
    return min(megabytes, _MAX_UNSIGNED // MIB) * MIB


def _integer(name: str, text: str, max_integer: int = _MAX_UNSIGNED) -> int:
    """Read the integer at the start of a text; a negative one becomes 64 unsigned bits (stoull)."""
    digits = _INTEGER.match(text)
    number = int(f"{digits[1]}{digits[2]}") if digits else max_integer + 1
    if abs(number) > max_integer:
        error = _refused(name, "an integer", text)
        raise SettingError(str(error), IndexError) if digits else error
    return number & _MAX_UNSIGNED


def _fraction(
    name: str, text: str, _settings: AllocatorSettings, _grammar: SettingsGrammar
) -> float:
    try:
        number = float.fromhex(text) if "x" in text.lower() else float(text)
    except OverflowError:
        number = math.inf
    # stod refuses what is too small to be exact.
    if (
        number < sys.float_info.min
        and "x" not in text.lower()
        and not _is_exact(number, text)
    ):
        raise SettingError(str(_refused(name, "a larger number", text)), IndexError)
    kind = OPTIONS[name].kind
    if not (0 < number < 1 or (number in (0, 1) and kind == "fraction")):
        raise _refused(name, KINDS[kind][1], number)
    return number


def _is_exact(number: float, text: str) -> bool:
    """Return whether a decimal text is this number; an exponent too long for Decimal is not."""
    with suppress(InvalidOperation):
        return Decimal(text) == number
    return False


def _divisions(
    name: str, text: str, settings: AllocatorSettings, grammar: SettingsGrammar
) -> tuple[int, ...]:
    """Read one number for all intervals, or ``[256:1,512:2,>:8]`` (parseRoundUpPower2Divisions).

    As in torch, the first entry also applies to all smaller sizes, ``>`` applies to all sizes above
    the last one named (that one included before torch 2.10), and other sizes keep what they have.
    """
    if not text.startswith("["):
        count = _power_of_2(name, text, minimum=1, max_integer=grammar.max_integer)
        return (count,) * N_ROUNDUP_INTERVALS
    divisions = list(settings.roundup_power2_divisions)
    try:
        for interval, count in _listed_divisions(name, text, grammar):
            divisions[interval] = [count] * len(divisions[interval])
    except SettingError as error:
        error.read = tuple(divisions)
        raise
    return tuple(divisions)


def _listed_divisions(
    name: str, text: str, grammar: SettingsGrammar
) -> Iterator[tuple[slice, int]]:
    """Yield the intervals that each entry of a list is about, and its number of divisions."""
    tokens = _TOKEN.findall(text)[1:]
    start = last = 0
    # A comma may follow the last entry, and from torch 2.10 any token stands for it and the colon.
    for i in range(0, len(tokens) - 1, 4):
        bound, colon, value, comma, *_ = (*tokens[i : i + 4], "", "")
        if grammar.is_strict and (colon != ":" or comma not in (",", "]")):
            raise _refused(name, KINDS["divisions"][1], text)
        count = _power_of_2(name, value, max_integer=grammar.max_integer)
        begin, end = last + (not grammar.is_rest_inclusive), N_ROUNDUP_INTERVALS
        if bound != ">":
            end = min(_power_of_2(name, bound, minimum=1).bit_length(), end)
            last = end - 1
            begin, start = min(start, last), N_ROUNDUP_INTERVALS
        yield slice(begin, end), count


def _power_of_2(
    name: str, text: str, *, minimum: int = 0, max_integer: int = _MAX_UNSIGNED
) -> int:
    number = _integer(name, text, max_integer)
    if number < minimum or number & (number - 1):
        raise _refused(name, f"{minimum}, or a larger power of 2", number)
    return number


# --- the readers of a text

_READERS: dict[str, Callable[[str, str, AllocatorSettings, SettingsGrammar], Any]] = {
    "size": _size,
    "fraction": _fraction,
    "threshold": _fraction,
    "divisions": _divisions,
}
# The fields of options that move blocks, in the order in which they are read.
_FIELDS = {
    # The size of blocks that are not split follows that of large segments.
    "large_segment_size_mb": ("large_segment_bytes", "max_non_split_rounding_bytes"),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes",),
    "max_split_size_mb": ("max_split_size_bytes",),
    "per_process_memory_fraction": ("memory_fraction",),
    "garbage_collection_threshold": ("garbage_collection_threshold",),
    "expandable_segments": ("expandable_segments",),
    "roundup_power2_divisions": ("roundup_power2_divisions",),
}
_RESET = (
    "max_split_size_bytes",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
)
_READ_FIRST = "large_segment_size_mb"
MODELLED_SETTINGS = tuple(sorted(_FIELDS))
