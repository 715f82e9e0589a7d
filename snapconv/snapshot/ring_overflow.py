"""Whether a ring buffer overwrote its oldest events, as far as a file or its recorder says."""

from dataclasses import dataclass

from snapconv.snapshot.recorded.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Overflow:
    """Whether a ring buffer overflowed, by: the file (torch newer than 2.13), or else its recorder."""

    raw: dict[str, object]
    recorded: Metadata | None

    def of(self, device: int) -> bool | None:
        """The flag is at the top or in the settings, one or per device; None where it is not known."""
        settings = self.raw.get("allocator_settings")
        places = (self.raw, settings if isinstance(settings, dict) else {})
        for place in places:
            flag = place.get("trace_alloc_overflowed")
            if isinstance(flag, list) and device < len(flag):
                flag = flag[device]
            if isinstance(flag, bool):
                return flag
        return self.recorded.overflowed if self.recorded else None

    def of_host(self, n_events: int) -> bool | None:
        """No flag is about pinned host memory; a recorder's ring has the same length for it."""
        length = dict(self.recorded.facts).get("max_entries", "") if self.recorded else ""
        return n_events >= int(length) if length.isdecimal() else None
