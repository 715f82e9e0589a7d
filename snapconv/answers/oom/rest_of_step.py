"""The most that a program still needs after a request that failed: by an earlier step, or by inventory.

An earlier step is one with a request of the same line. Where there is none, backward and the optimizer's step
have an inventory: gradients and states that weights have not got yet, and temporaries; it counts the next
step too, which begins with the states of this one. What a first forward still needs is in neither.
"""

import re

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import GROWING, Change, Demand, removed
from snapconv.answers.advice.trades import SAVED_BY_8_BITS, is_temporary_of_step
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.columns import BoolColumn, distinct, has_code, is_among, rows_of
from snapconv.phases.trace_phases import Phase, rule_of
from snapconv.replay.history_verdict import Verdict
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.torch_knowledge.optimizers import OF_OTHERS, OF_TORCH
from snapconv.units import format_bytes

# Temporaries of a step, as lists with a tensor for every weight: with torch 2.13 the peak of a first step of
# these is that of weights, gradients, states and one list.
_OF_ONE_LIST, _MOST_LISTS = {"Adam", "AdamW", "SGD"}, 2
# torch names the class in its annotations of step, and of zero_grad, which mostly comes before the first.
_CLASS = re.compile(r"^Optimizer\.(?:step|zero_grad)#(\w+)\.")
# States of every weight where the optimizer is not known, as those of Adam.
_USUAL_STATES = 2
# Of the largest tensor of forward: what backward has in use beside the gradients of weights, as the gradients
# of queries, keys and values.
_LARGEST_IN_BACKWARD = 3
# By the kind of a finding: the shares that it leaves of states and of temporaries of the step.
_LEAVES = {"states": (1 - SAVED_BY_8_BITS, 0), "foreach": (1, 0)}


class RestOfStep:
    """What is still to come of the step in which a request failed.

    ``begin`` is the first event of the step, ``earlier`` that of an earlier one with such a request, None
    where there is none. ``is_setup``: weights are being placed, before any forward. ``weight_bytes`` may
    be weights; ``gradients``, ``states`` and ``lists`` are the most that these may still get.
    """

    def __init__(self, analysis: DeviceAnalysis, event: int) -> None:
        self.analysis, self.event, self.demand = analysis, event, Demand(analysis)
        self.phase, self._live = analysis.phases.phase[event], analysis.allocations.live_at(event - 1)
        placed = analysis.features.roles.of(
            Role.PLACEMENT, analysis.device.events.stack_id[event : event + 1]
        )
        self.is_setup = bool(placed[0]) and analysis.phases.first(Phase.FORWARD) > event
        self.begin = max(analysis.iterations[analysis.phases.iteration[event]].first_event, 0)
        self.earlier, self.ratio = self._find_earlier()
        self.is_known = self.earlier is not None or self.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
        category, is_list = analysis.classification.category, is_temporary_of_step(analysis)
        is_state = has_code(category, Category.OPTIMIZER_STATE) & ~is_list
        gradients, had = self._bytes(has_code(category, Category.GRADIENT)), self._bytes(is_state)
        self.states_made = self._bytes(is_state & (analysis.allocations.alloc_event >= self.begin))
        # Before backward has ended all weights may be trained, and what is unknown may be weights.
        self.weight_bytes = self._bytes(is_among(category, (Category.WEIGHT, Category.UNKNOWN)))
        trained = gradients if self.phase == Phase.OPTIMIZER else max(self.weight_bytes, gradients)
        texts = [
            analysis.snapshot.texts[n] for n in distinct(analysis.snapshot.annotations.name_id) if n >= 0
        ]
        names = {found[1] for text in texts if (found := _CLASS.match(text))}
        rules = [rule_of(name, (*OF_TORCH, *OF_OTHERS)) for name in names]
        n_states = max((rule.most_states if rule else _USUAL_STATES for rule in rules), default=_USUAL_STATES)
        n_lists = 1 if names and names <= _OF_ONE_LIST else _MOST_LISTS
        self.gradients, self.states = trained - gradients, max(n_states * trained - had, 0)
        self.lists = n_lists * trained

    def _bytes(self, of: BoolColumn) -> int:
        return int(self.analysis.allocations.block_bytes[of & self._live].sum())

    def _find_earlier(self) -> tuple[int | None, float]:
        """Find the last whole step with such a request, and how many times larger the one that failed is.

        Of several in a step it is the one with the same number.
        """
        table, stack = self.analysis.allocations, self.analysis.device.events.stack_id[self.event]
        first = 0 if self.analysis.history.verdict is Verdict.COMPLETE else 1
        iteration = self.analysis.iteration
        is_before = (iteration >= first) & (table.alloc_event < self.begin)
        is_same = (table.stack_id == stack) & (stack >= 0) & (table.alloc_event < self.event)
        same, number = (
            rows_of(is_same & is_before),
            np.count_nonzero(is_same & (table.alloc_event >= self.begin)),
        )
        same = same[iteration[same] == iteration[same[-1:]]][number:]
        if not len(same):
            return None, 1.0
        ratio = float(self.analysis.device.events.size[self.event] / table.block_bytes[same[0]])
        return max(self.analysis.iterations[iteration[same[0]]].first_event, 0), max(ratio, 1.0)

    def most_after(self, change: Change, kind: str = "") -> int | None:
        """Return the most bytes allocated after the request, with a change of this kind; None: unknown."""
        if not self.is_known:
            return None
        category, table = self.analysis.classification.category, self.analysis.allocations
        held = self.demand.held([change])  # entry e is before event e
        if self.earlier is not None:
            # What is kept once it is made is there already. Beside it comes what the earlier step had; what
            # grows with the batch is as many times larger as the request is.
            is_kept = is_among(category, categories_with(Trait.USUALLY_KEPT)) & self._live
            in_step = has_code(self.analysis.features.alloc_phase, Phase.OPTIMIZER)
            beside, fixed = (
                self.demand.held([removed(self.analysis, rows_of(left_out)), change])
                for left_out in (is_kept, is_kept | (is_among(category, GROWING) & ~in_step))
            )
            kept = held[self.event] - beside[self.event]
            again = (fixed + self.ratio * (beside - fixed))[self.earlier : self.begin]
            return int(max(kept + again.max(), held[self.begin : self.event + 1].max()))
        of_states, of_lists = _LEAVES.get(kind, (1, 1))
        states = self.states * of_states
        n_bytes = table.block_bytes.copy()
        np.subtract.at(n_bytes, change.rows, change.n_bytes)
        largest = n_bytes[is_among(category, GROWING)].max(initial=0)
        in_step = has_code(self.analysis.phases.phase[self.begin : self.event], Phase.OPTIMIZER)
        graph = rows_of(is_among(category, (Category.ACTIVATION, Category.TEMPORARY)))
        kept = self.demand.held([removed(self.analysis, graph), change])[self.event]
        step = kept + self.gradients + states + self.lists * of_lists + largest
        before = held[self.begin : self.event + 1][~np.append(False, in_step)].max()
        if self.phase == Phase.BACKWARD:
            failed = self.analysis.device.events.size[self.event] * np.ravel(change.failed_scale)[0]
            beside = failed + self.gradients + _LARGEST_IN_BACKWARD * largest
            before = max(before, held[self.event] + beside)
        return int(max(step, before + states + self.states_made * of_states))

    def why_unknown(self) -> str:
        """Say why what follows the request is not known."""
        if self.is_setup:
            return "what the steps need is not known before the first forward"
        return "the rest of the step is not known: the trace has no earlier step with this request"

    def to_come(self) -> str:
        """List the most that weights still get; empty where an earlier step shows it, or nothing does."""
        if self.earlier is not None or not self.is_known:
            return ""
        parts = (self.gradients, "of gradients"), (self.states, "of optimizer states")
        return " and ".join(f"{format_bytes(n_bytes)} {what}" for n_bytes, what in parts if n_bytes)
