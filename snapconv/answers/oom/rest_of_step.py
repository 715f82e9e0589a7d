"""The most that a program needs in the whole of a step in which a request failed.

An earlier step with the same request shows it. Where there is none, backward and the optimizer's
step have an inventory: for every weight a gradient, states and temporaries, beside the most that
the step had until then.
What a first forward still needs is in neither, nor what an optimizer keeps that is in no table
(LBFGS, Shampoo): it is not known.
"""

from collections.abc import Sequence

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.trades import SAVED_BY_8_BITS
from snapconv.answers.growth import find_growth, growth_notes
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.columns import is_among, rows_of
from snapconv.hypotheses.batch_growth import GROWING
from snapconv.hypotheses.changes import Change, Demand, combined, removed
from snapconv.phases.trace_phases import Phase
from snapconv.replay.history_verdict import Verdict
from snapconv.torch_knowledge.frame_patterns import Role

# Copies of the weights: temporaries of a step of torch 2.13, and the states where the optimizer is
# not known. Three states and two temporaries (RMSprop), or four states (Adan), are the most.
_TEMPORARIES, _MOST_STATES = 2, 3
# The share of states that remains, by the kind of a finding that makes temporaries needless.
_STATES_LEFT = {"states": 1 - SAVED_BY_8_BITS, "foreach": 1.0}
# Copies of the largest tensor of forward that backward uses together: the gradients of queries,
# keys and values.
_LARGEST_IN_BACKWARD = 3


class RestOfStep:
    """What the step of a failed request needs in all: ``begin`` is its first event.

    ``earlier`` is the first event of an earlier step with such a request, None where there is none;
    ``has_inventory``: there is none, and all that weights still get is known. ``is_known``: one of
    the two shows the most. ``is_setup``: weights are being placed, before any forward.
    ``weight_bytes`` may be weights.
    """

    def __init__(self, analysis: DeviceAnalysis, event: int) -> None:
        phases = analysis.phases
        table = analysis.allocations
        self.analysis = analysis
        self.event = event
        self.demand = Demand(analysis)
        self.phase = phases.phase[event]
        self.is_setup = (
            _places_weights(analysis, event) and phases.first(Phase.FORWARD) > event
        )
        self.begin = max(analysis.iterations[phases.iteration[event]].first_event, 0)
        self.earlier = self._find_earlier()
        is_after_forward = self.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
        has_table = is_after_forward and phases.optimizers.needs_are_known
        self.has_inventory = self.earlier is None and has_table
        # What grows from step to step has no step that shows the most.
        is_shown = self.earlier is not None or has_table
        self.is_known = is_shown and not any(growth_notes(analysis, find_growth(analysis)))
        category = analysis.classification.category
        is_live = table.live_at(event - 1)
        self._stays = is_among(category, categories_with(Trait.USUALLY_KEPT))
        self._kept = rows_of(self._stays & is_live)
        # All weights may be trained, and what is unknown may be weights.
        is_weight = is_among(category, (Category.WEIGHT, Category.UNKNOWN)) & is_live
        self.weight_bytes = table.bytes_of(is_weight)

    @property
    def is_assumed(self) -> bool:
        """Whether the trace does not show the optimizer, which is taken to be one of the table."""
        states = self.analysis.phases.optimizers.states_range
        return self.is_known and self.has_inventory and states is None

    def _find_earlier(self) -> int | None:
        """Find the last whole step with this request.

        Where its line made several requests in a step, the one of the same number is compared.
        """
        analysis = self.analysis
        table = analysis.allocations
        events = analysis.device.events
        stack = events.stack_id[self.event]
        if stack < 0:
            return None
        is_earlier = table.alloc_event < self.event
        rows = rows_of((table.stack_id == stack) & is_earlier)
        steps = analysis.iteration[rows]
        step = analysis.phases.iteration[self.event]
        earlier = int(steps[steps < step].max(initial=-1))
        # The first step may lack its begin if the history is not complete.
        first_whole = 0 if analysis.history.verdict is Verdict.COMPLETE else 1
        if earlier < first_whole:
            return None
        sizes = table.block_bytes[rows[steps == earlier]]
        number = np.count_nonzero(steps == step)
        if number >= len(sizes) or sizes[number] < events.size[self.event]:
            return None
        return max(analysis.iterations[earlier].first_event, 0)

    def most_bytes(self, changes: Sequence[Change], kind: str = "") -> int:
        """Return the most bytes allocated in this step, which is known, with changes of this kind.

        They are what stays from step to step, and the most beside it: of the earlier step with what
        else it left, or of this one until the request.
        """
        table = self.analysis.allocations
        event = self.event
        passing_changes = [removed(self.analysis, self._kept), *changes]
        passing_bytes = self.demand.allocated_bytes(passing_changes)  # before each event
        if self.earlier is not None:
            all_bytes = self.demand.allocated_bytes(changes)
            lasting_bytes = all_bytes[event] - passing_bytes[event]
            is_recent = table.alloc_event >= self.earlier
            is_remnant = ~self._stays & table.live_at(self.begin - 1) & is_recent
            most_passing = passing_bytes[self.earlier : self.begin].max()
            return int(lasting_bytes + table.bytes_of(is_remnant) + most_passing)
        most_passing = passing_bytes[self.begin : event + 1].max()
        if self.phase == Phase.BACKWARD:
            most_passing += _LARGEST_IN_BACKWARD * self._largest_of_forward(changes)
        return int(most_passing + self._most_of_weights(kind))

    def _largest_of_forward(self, changes: Sequence[Change]) -> int:
        """Return the bytes of the largest allocation that grows with the batch."""
        change = combined(self.analysis, changes)
        n_bytes = self.analysis.allocations.block_bytes.copy()
        n_bytes[change.rows] -= change.n_bytes
        grows = is_among(self.analysis.classification.category, GROWING)
        return int(n_bytes[grows].max(initial=0))

    def _most_of_weights(self, kind: str = "") -> int:
        """Return the bytes of all weights, gradients and states, and the temporaries of a step."""
        states_range = self.analysis.phases.optimizers.states_range
        n_states = states_range[1] if states_range else _MOST_STATES
        if kind in _STATES_LEFT:
            n_of_step = n_states * _STATES_LEFT[kind]
        else:
            n_of_step = n_states + _TEMPORARIES
        n_weights = n_gradients = 1
        return int(self.weight_bytes * (n_weights + n_gradients + n_of_step))

    def bytes_to_come(self) -> int:
        """Return the most that weights still get.

        0 where an earlier step shows what the step needs, or nothing does.
        """
        if not self.has_inventory:
            return 0
        kept_bytes = self.analysis.allocations.bytes_of(self._kept)
        return max(self._most_of_weights() - int(kept_bytes), 0)


def _places_weights(analysis: DeviceAnalysis, event: int) -> bool:
    """Return whether an event places weights on the device."""
    stack_id = analysis.device.events.stack_id[event : event + 1]
    return bool(analysis.features.roles.of(Role.PLACEMENT, stack_id)[0])
