"""silu written as x * sigmoid(x): what F.silu saves, and what only looks like it."""

import pytest

from tests.builders import MIB
from tests.unit.answers.test_kinds import silu


def findings(advice_on, *args, **how):
    return [one for one in advice_on(silu(*args, **how)).findings if one.kind == "silu"]


def test_the_sigmoids_of_all_layers_go(advice_on):
    """Each of three layers keeps x, the sigmoid and the product, of 8 MiB each."""
    (finding,) = findings(advice_on)
    assert finding.what == "silu as x * sigmoid(x) keeps 3 sigmoids for backward (layers.py:5)."
    assert finding.peak.n_bytes == 3 * 2 * 8 * MIB
    assert not finding.is_certain


@pytest.mark.parametrize(
    "how",
    [
        {"name": "gate"},  # of another tensor, perhaps
        {"second": 16},  # a factor that is spread over more
        {"is_kept": False},  # under no_grad
    ],
    ids=["no name", "another size", "no graph"],
)
def test_other_sigmoids_are_none(how, advice_on):
    assert findings(advice_on, **how) == []
