"""The conclusion of trials: whether the job fits, by how much, and which setting saves memory."""

from collections.abc import Sequence

from snapconv.allocator.allocator_settings import split_conf
from snapconv.answers.moments import FEW_EVENTS
from snapconv.answers.what_if.setting_trials import (
    AS_AT_OOM,
    ONE_STREAM,
    OWN_PLACED_ANEW,
    SettingTrials,
    Tried,
)
from snapconv.answers.what_if.trial import FailedRequest, Outcome
from snapconv.units import format_bytes

_NO_ORDER = "the order of the allocations decides the layout, and is not recorded"


def reference(trials: SettingTrials) -> Outcome:
    """Return the outcome under the file's own settings that the other trials are compared with."""
    return trials.tried[_n_own(trials) - 1].outcome


def alternatives(trials: SettingTrials) -> Sequence[Tried]:
    """Return the trials of other settings."""
    return trials.tried[_n_own(trials) :]


def _n_own(trials: SettingTrials) -> int:
    return 1 + (OWN_PLACED_ANEW in [tried.name for tried in trials.tried])


def conclude(trials: SettingTrials) -> str:
    """Say in a sentence what the trials show: first whether the job fits, then what a setting saves."""
    has_limit = trials.capacity_bytes is not None and not trials.capacity_from.startswith(AS_AT_OOM)
    parts = [_fit(trials)] if has_limit else []
    if alternatives(trials):
        parts.append(_best_setting(trials))
    elif not has_limit:
        parts.append(_need(trials))
    return "; ".join(parts)


def _fit(trials: SettingTrials) -> str:
    """Say whether the job fits under the file's own settings, with what is left or lacking."""
    own, capacity = reference(trials), trials.capacity_bytes or 0
    failed = own.ran_out
    if failed is None and trials.unsure:
        return f"unknown whether it fits: {trials.unsure}"
    if failed is None:
        most, recorded = own.ledger.max_reserved_bytes, trials.recorded["peak_reserved"]
        # A replay may reserve somewhat less than the program did, and needed.
        most = max(most, recorded) if trials.batch_scale >= 1 and recorded <= capacity else most
        fits = "fits" if trials.is_whole else "what the trace shows fits"
        return f"{fits}: {format_bytes(most)} reserved at most, {format_bytes(max(capacity - most, 0))} left"
    return f"does not fit in {format_bytes(capacity)}: {_shortage(trials, failed, capacity)}"


def _need(trials: SettingTrials) -> str:
    """Say what the job needs, where nothing limits it."""
    own = reference(trials)
    failed = own.ran_out
    if failed is not None:
        capacity = trials.capacity_bytes or 0
        return f"does not fit in what torch had: {_shortage(trials, failed, capacity)}"
    reserved = format_bytes(own.ledger.max_reserved_bytes)
    return f"needs {reserved} reserved, {format_bytes(own.ledger.max_allocated_bytes)} allocated"


def _shortage(trials: SettingTrials, failed: FailedRequest, capacity: int) -> str:
    """Say where the job runs out, and what it needs more at least: no packing of its blocks needs less."""
    more = failed.short_bytes
    if trials.batch_scale >= 1:
        more = max(more, trials.recorded["peak_allocated"] - capacity)
    if failed.event < 0:
        moment = "before the first event"
    else:
        phase = trials.tried[0].phase
        moment = f"at event {failed.event}{f', in {phase}' if phase else ''}"
    return f"at least {format_bytes(more)} short, out of memory {moment}"


def _best_setting(trials: SettingTrials) -> str:
    """Name the best setting, if the trials can tell, with its saving from the smaller reference."""
    unsure = _NO_ORDER if trials.n_events < FEW_EVENTS else trials.unsure
    if unsure:
        return f"no setting is recommended: {unsure}"
    own = reference(trials)
    baseline, source = own.ledger.max_reserved_bytes, "in a replay of the file's own settings"
    if trials.batch_scale == 1 and trials.recorded["peak_reserved"] <= baseline:
        baseline, source = trials.recorded["peak_reserved"], "recorded"
    fitting = [tried for tried in alternatives(trials) if tried.outcome.ran_out is None]
    best = min(fitting, key=_most_reserved, default=None)
    if best is None or (own.ran_out is None and _most_reserved(best) >= baseline):
        return "none of these settings helps"
    export = best.name
    if best.name != ONE_STREAM:
        conf = split_conf(own.trial.settings.conf) | split_conf(best.name)
        export = f"export {trials.variable}={','.join(map(':'.join, conf.items()))}"
    if own.ran_out is not None:
        fits = "fits" if trials.is_whole else "what the trace shows fits"
        return f"{fits} with another setting: {export}"
    return f"best, reserves {format_bytes(baseline - _most_reserved(best))} less than {source}: {export}"


def _most_reserved(tried: Tried) -> int:
    return tried.outcome.ledger.max_reserved_bytes
