"""The conclusion of trials: whether the job fits, by how much, and which setting saves memory."""

from snapconv.answers.moments import FEW_EVENTS
from snapconv.answers.what_if.setting_trials import AS_AT_OOM, ONE_STREAM, SettingTrials
from snapconv.answers.what_if.trial import FailedRequest
from snapconv.units import format_bytes

_NO_ORDER = "the order of the allocations decides the layout, and is not recorded"


def conclude(trials: SettingTrials) -> str:
    """Say in a sentence what the trials show: first whether the job fits, then what a setting saves."""
    has_limit = trials.capacity_bytes is not None and not trials.capacity_from.startswith(AS_AT_OOM)
    parts = [_fit(trials, has_limit=has_limit)] if has_limit or not trials.others else []
    if trials.others:
        parts.append(_best_setting(trials))
    return "; ".join(parts)


def _fit(trials: SettingTrials, *, has_limit: bool) -> str:
    """Say whether the job fits under the file's own settings, with what is left, lacking or needed."""
    own = trials.reference
    capacity = trials.capacity_bytes or 0
    if own.ran_out:
        limit = format_bytes(capacity) if has_limit else "what torch had"
        return f"does not fit in {limit}: {_shortage(trials, own.ran_out, capacity)}"
    if not has_limit:
        allocated = format_bytes(own.ledger.max_allocated_bytes)
        return f"needs {format_bytes(own.reserved_bytes)} reserved, {allocated} allocated"
    if trials.unsure:
        return f"unknown whether it fits: {trials.unsure}"
    most = own.reserved_bytes
    recorded = trials.recorded["peak_reserved"]
    # A replay may reserve somewhat less than the program did, and needed.
    most = max(most, recorded) if trials.batch_scale >= 1 and recorded <= capacity else most
    left = format_bytes(max(capacity - most, 0))
    return f"{_fits(trials)}: {format_bytes(most)} reserved at most, {left} left"


def _fits(trials: SettingTrials) -> str:
    return "fits" if trials.is_whole else "what the trace shows fits"


def _shortage(trials: SettingTrials, failed: FailedRequest, capacity: int) -> str:
    """Say where the job runs out, and what it needs more at least: no packing of its blocks needs less."""
    more = failed.short_bytes
    if trials.batch_scale >= 1:
        more = max(more, trials.recorded["peak_allocated"] - capacity)
    phase = trials.tried[0].phase
    moment = "before the first event" if failed.event < 0 else f"at event {failed.event}"
    where = f", in {phase}" if phase and failed.event >= 0 else ""
    return f"at least {format_bytes(more)} short, out of memory {moment}{where}"


def _best_setting(trials: SettingTrials) -> str:
    """Name the best setting, if the trials can tell, with its saving from the smaller reference."""
    unsure = _NO_ORDER if trials.n_events < FEW_EVENTS else trials.unsure
    if unsure:
        return f"no setting is recommended: {unsure}"
    own = trials.reference
    baseline = own.reserved_bytes
    source = "in a replay of the file's own settings"
    if trials.batch_scale == 1 and trials.recorded["peak_reserved"] <= baseline:
        baseline = trials.recorded["peak_reserved"]
        source = "recorded"
    fitting = [tried for tried in trials.others if tried.outcome.fits]
    if own.fits:
        fitting = [tried for tried in fitting if tried.outcome.reserved_bytes < baseline]
    if not fitting:
        return "none of these settings helps"
    best = min(fitting, key=lambda tried: tried.outcome.reserved_bytes)
    export = best.name
    if best.name != ONE_STREAM:
        export = f"export {trials.variable}={own.trial.settings.conf_with(best.name)}"
    if not own.fits:
        return f"{_fits(trials)} with another setting: {export}"
    saved = format_bytes(baseline - best.outcome.reserved_bytes)
    return f"best, reserves {saved} less than {source}: {export}"
