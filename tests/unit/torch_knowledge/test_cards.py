"""Cards by name: as people write them, with less memory than the name says."""

import re

import pytest

from snapconv.torch_knowledge.cards import find_card, named_cards

GIB = 1 << 30


@pytest.mark.parametrize("text", ["H100", "h100", "NVIDIA H100", "nvidia-h100"])
def test_a_card_is_found_by_its_name_as_people_write_it(text):
    card = find_card(text)
    assert card is not None
    assert (card.name, card.total_bytes) == ("H100", int(79.11 * GIB))


@pytest.mark.parametrize("text", ["RTX 4090", "rtx4090", "4090", "GeForce RTX 4090"])
def test_a_maker_and_a_series_may_be_left_out(text):
    card = find_card(text)
    assert card is not None
    assert card.name == "RTX-4090"


def test_a_name_of_several_sizes_asks_which():
    with pytest.raises(ValueError, match="give A100-40GB or A100-80GB"):
        find_card("A100")


@pytest.mark.parametrize("text", ["", "80GiB", "X100", "GB"])
def test_another_text_is_no_card(text):
    assert find_card(text) is None


@pytest.mark.parametrize("name", named_cards())
def test_a_card_has_less_than_its_name_says_and_is_found_by_it(name):
    card = find_card(name)
    assert card is not None
    assert card.name == name
    if marketed := re.search(r"(\d+)GB", name):
        assert 0.9 * int(marketed[1]) * GIB < card.total_bytes < int(marketed[1]) * GIB
