"""Results -> what is wrong or unknown in each case, for whoever works on the rules."""

from collections.abc import Iterable, Iterator

from comparison import Bytes, Result

# Less than a thousandth of a case is left out.
_LEAST_SHARE = 0.001


def faults_of(results: Iterable[Result]) -> str:
    """One line per case and moment that has faults: truth, what was said, by which rule, its share."""
    return "\n".join(line for result in results for line in _lines(result))


def _lines(result: Result) -> Iterator[str]:
    case = result.case
    setup = f"{case.setup.optimizer}{'' if case.setup.set_to_none else ' to zero'} {case.setup.n_steps}"
    for moment, n_bytes in (("peak", result.at_peak), ("activations", result.at_activations)):
        found = list(_faults(n_bytes))
        if found:
            right = n_bytes.right / (n_bytes.counted or 1)
            head = f"{case.entry} {setup} {case.stacks} {case.history} {moment}: {right:.2%} right"
            yield f"{head}; {', '.join(found)}"


def _faults(n_bytes: Bytes) -> Iterator[str]:
    for (true, said, rule), size in n_bytes.by_rule.most_common():
        share = size / (n_bytes.counted or 1)
        if true != said and share >= _LEAST_SHARE:
            yield f"{true} -> {said} {share:.2%} ({rule})"
