"""What is likely, and what is left where only what is certain counts."""

import numpy as np

from snapconv.classification.categories import Category, Certainty, Evidence
from snapconv.classification.decisions import LIKELY_ONLY, Classification


def classified(*certainties):
    n_rows = len(certainties)
    return Classification(
        category=np.full(n_rows, Category.WEIGHT, np.int8),
        evidence=np.full(n_rows, Evidence.SIZES, np.int8),
        reason_id=np.ones(n_rows, np.int32),
        reasons=("none", "explained-by-the-job"),
        certainty=np.array(certainties, np.int8),
        probability=np.full(n_rows, 0.75, np.float32),
    )


def test_what_is_likely_counts_as_unknown_and_keeps_no_evidence():
    found = classified(Certainty.CERTAIN, Certainty.LIKELY).only_certain()
    assert found.category.tolist() == [Category.WEIGHT, Category.UNKNOWN]
    assert found.certainty.tolist() == [Certainty.CERTAIN, Certainty.UNKNOWN]
    assert found.evidence.tolist() == [Evidence.SIZES, Evidence.NONE]
    assert found.probability.tolist() == [0.75, 0]
    assert [found.reasons[number] for number in found.reason_id] == [
        "explained-by-the-job",
        LIKELY_ONLY,
    ]
    assert not found.category.flags.writeable


def test_where_nothing_is_likely_nothing_changes():
    found = classified(Certainty.CERTAIN, Certainty.RECORDED)
    assert found.only_certain() is found
