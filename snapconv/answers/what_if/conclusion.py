"""The conclusion of trials: whether the job fits, by how much, and which setting saves memory."""

from snapconv.answers.moments import FEW_EVENTS
from snapconv.answers.what_if.setting_trials import (
    AS_AT_OOM,
    ONE_STREAM,
    SettingTrials,
    rank,
)
from snapconv.hypotheses.trial_outcome import FailedRequest
from snapconv.units import format_bytes

_NO_ORDER = "the order of the allocations decides the layout, and is not recorded"


def conclude(trials: SettingTrials) -> str:
    """Say in a sentence whether the job fits, and how much the best setting saves."""
    is_limit = not trials.capacity_from.startswith(AS_AT_OOM)
    has_limit = trials.capacity_bytes is not None and is_limit
    parts = []
    if has_limit or not trials.alternatives:
        parts.append(_fit(trials, has_limit=has_limit))
    if trials.alternatives:
        parts.append(_best_setting(trials))
    return "; ".join(parts)


def _fit(trials: SettingTrials, *, has_limit: bool) -> str:
    """Say whether the job fits under the file's own settings, and the bytes left or lacking."""
    outcome = trials.reference
    capacity = trials.capacity_bytes or 0
    if outcome.ran_out:
        limit = format_bytes(capacity) if has_limit else "what torch had"
        return f"does not fit in {limit}: {_shortage(trials, outcome.ran_out, capacity)}"
    if not has_limit:
        allocated = format_bytes(outcome.ledger.max_allocated_bytes)
        return (
            f"needs {format_bytes(outcome.reserved_bytes)} reserved, {allocated} allocated"
        )
    if trials.unsure:
        return f"unknown whether it fits: {trials.unsure}"
    reserved = outcome.reserved_bytes
    recorded = trials.recorded["peak_reserved"]
    # A replay may reserve somewhat less than the program did, and needed.
    if trials.batch_scale >= 1 and recorded <= capacity:
        reserved = max(reserved, recorded)
    remaining = format_bytes(max(capacity - reserved, 0))
    return f"{_fits(trials)}: {format_bytes(reserved)} reserved at most, {remaining} left"


def _fits(trials: SettingTrials) -> str:
    return "fits" if trials.is_whole else "what the trace shows fits"


def _shortage(trials: SettingTrials, failed: FailedRequest, capacity: int) -> str:
    """Say where the job runs out, and how many bytes it lacks at least.

    No packing of its blocks needs less.
    """
    lacking = failed.short_bytes
    if trials.batch_scale >= 1:
        lacking = max(lacking, trials.recorded["peak_allocated"] - capacity)
    phase = trials.tried[0].phase
    moment = "before the first event"
    if failed.event >= 0:
        moment = f"at event {failed.event}"
        if phase:
            moment += f", in {phase}"
    return f"at least {format_bytes(lacking)} short, out of memory {moment}"


def _best_setting(trials: SettingTrials) -> str:
    """Name the best setting, if the trials can tell, with its saving from the smaller reference."""
    unsure = _NO_ORDER if trials.n_events < FEW_EVENTS else trials.unsure
    if unsure:
        return f"no setting is recommended: {unsure}"
    reference = trials.reference
    baseline = reference.reserved_bytes
    source = "in a replay of the file's own settings"
    if trials.batch_scale == 1 and trials.recorded["peak_reserved"] <= baseline:
        baseline = trials.recorded["peak_reserved"]
        source = "recorded"
    best = min(trials.alternatives, key=rank)
    saved_bytes = baseline - best.outcome.reserved_bytes
    if not best.outcome.fits or (reference.fits and saved_bytes <= 0):
        return "none of these settings helps"
    export = best.name
    if best.name != ONE_STREAM:
        export = f"export {trials.variable}={reference.trial.settings.conf_with(best.name)}"
    if not reference.fits:
        return f"{_fits(trials)} with another setting: {export}"
    return f"best, reserves {format_bytes(saved_bytes)} less than {source}: {export}"
