"""The pipeline as a whole: its names, its reasons, and that its order is the precedence."""

from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import find_features
from snapconv.classification.rule import Decided, Proposal, Reason, Rule
from snapconv.classification.rule_order import PIPELINE, classify, opinions

FIXTURES = Path(__file__).parents[3] / "fixtures"


def features_of(analysis):
    return find_features(
        analysis.allocations, analysis.phases, analysis.roles, user_rules=analysis.user_rules
    )


@pytest.fixture(scope="module")
def features():
    return features_of(snapconv.load(FIXTURES / "training_step.pickle").devices[0])


def test_every_rule_has_a_name_of_its_own():
    names = [rule.name for rule in PIPELINE]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("codes", [Category, Evidence])
def test_codes_in_columns_count_from_0(codes):
    assert [code.value for code in codes.__members__.values()] == list(range(len(codes.__members__)))


def test_a_slug_always_has_the_same_reason():
    reasons = {}
    for rule in PIPELINE:
        if isinstance(rule, Rule):
            assert reasons.setdefault(rule.reason.slug, rule.reason) == rule.reason


def everything(category, name):
    def where(features, _):
        return np.ones(len(features.alloc), np.bool_)

    return Rule(name, Reason(name, "a test"), category, Evidence.FRAMES, where)


def test_the_first_rule_that_marks_an_allocation_decides(features):
    first, second = everything(Category.INPUT, "first"), everything(Category.WEIGHT, "second")
    for pipeline in ((first, second), (second, first)):
        found = classify(features, pipeline)
        assert set(found.category.tolist()) == {pipeline[0].category}
        assert found.reasons == ("none", pipeline[0].name)


def test_without_rules_everything_is_unknown(features):
    found = classify(features, ())
    assert not found.category.any()
    assert not found.evidence.any()


def test_a_rule_marks_one_bool_for_every_allocation(features):
    for rule in PIPELINE:
        for proposal in rule.proposals(features, Decided(len(features.alloc))):
            assert isinstance(proposal, Proposal)
            assert (proposal.where.dtype, proposal.where.shape) == (np.bool_, features.alloc.shape)


def test_without_a_rule_what_it_decided_goes_to_later_ones(features):
    slug = "kept-after-backward"
    removed = next(rule for rule in PIPELINE if isinstance(rule, Rule) and rule.reason.slug == slug)
    without = classify(features, tuple(rule for rule in PIPELINE if rule is not removed))
    assert slug in classify(features).reasons
    assert slug not in without.reasons


def test_the_first_opinion_is_the_decision(features):
    found = classify(features)
    first = {}
    for opinion in opinions(features, np.arange(len(features.alloc))):
        first.setdefault(opinion.row, opinion)
    for row, category in enumerate(found.category.tolist()):
        assert (first[row].category if row in first else Category.UNKNOWN) == category
