"""A user's own rules: what a file may have, what is wrong with it, and which stacks a pattern fits."""

import errno
import os
import pickle
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.user_rules import UserRule, match_rules, read_rules, read_toml
from snapconv.cli.app import main
from snapconv.errors import InputError
from snapconv.snapshot.stack_table import StackInterner
from tests.builders import frame

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rules-file.md"


def fits(pattern, *stack):
    """Whether a pattern fits a stack of (function, file), leaf first."""
    interner = StackInterner()
    interner.ids([[{"name": name, "filename": file, "line": 1} for name, file in stack]], str)
    return bool(match_rules([UserRule(Category.WEIGHT, pattern)], interner.table()).has[0, 0])


# --- what a file may have


def test_a_file_has_patterns_for_categories_in_the_order_of_their_evaluation(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('weight = ["a.py:f", "g"]\ninput = []\nkv_cache = ["b.py"]')
    assert read_rules(path) == (
        UserRule(Category.WEIGHT, "a.py:f"),
        UserRule(Category.WEIGHT, "g"),
        UserRule(Category.KV_CACHE, "b.py"),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a b", "no TOML: .*line 1"),
        (b'weight = ["\xff"]', "UTF-8: byte 11"),
        (b"x = " + b"[" * 100_000, "no TOML: nested too deep"),
        (b'unknown = ["f"]', "unknown: no such category; there are: weight, gradient"),
        (b'weight = "f"', "weight: expected a list of patterns"),
        (b'weight = ["f", 1]', r"weight\[1\]: expected text, got int"),
        (b'weight = ["**"]', r"weight\[0\]: it would fit every frame"),
        (b'weight = [""]', r"weight\[0\]: it would fit every frame"),
        (b"weight = [" + b'"f",' * 201 + b"]", "its 201 patterns have 201 characters"),
        (b'weight = ["' + b"f" * 10_001 + b'"]', "its 1 patterns have 10001 characters"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place(tmp_path, content, message):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as wrong:
        read_rules(path)
    assert str(wrong.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_is_an_error_of_ours(tmp_path):
    with pytest.raises(
        InputError, match=rf"nowhere\.toml: cannot be read: {re.escape(os.strerror(errno.ENOENT))};"
    ):
        read_rules(tmp_path / "nowhere.toml")


def test_the_page_has_an_example_and_the_error_of_the_program(tmp_path):
    page, path = PAGE.read_text(encoding="utf-8"), tmp_path / "mine.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL).group(1))
    assert len(read_rules(path)) == 4
    path.write_text('weight = ["f", 3]')
    with pytest.raises(InputError) as wrong:
        read_rules(path)
    assert f"error: {str(wrong.value).removeprefix(f'{tmp_path}{os.sep}')}\n" in page


# --- which stacks a pattern fits

CACHE_FRAME, OTHER = ("allocate_cache", "/srv/serving/cache.py"), ("main", "/srv/main.py")


@pytest.mark.parametrize(
    ("pattern", "stack", "expected"),
    [
        ("serving/cache.py:allocate_cache", [OTHER, CACHE_FRAME], True),
        (
            "serving/cache.py:allocate_cache",
            [("main", CACHE_FRAME[1]), (CACHE_FRAME[0], OTHER[1])],
            False,
        ),
        ("ing/cache.py:allocate_cache", [CACHE_FRAME], False),
        ("/srv/serving/cache.py", [CACHE_FRAME], True),
        ("s*/c?che.py:*_cache", [CACHE_FRAME], True),
        ("cache.py", [CACHE_FRAME], True),
        ("allocate", [CACHE_FRAME], False),
        ("allocate*", [CACHE_FRAME], True),
        ("c10d::Reducer::*", [("c10d::Reducer::prepare()", "??")], True),
        ("cache.py", [("f", r"C:\srv\cache.py")], True),
        ("*", [], False),
    ],
)
def test_a_pattern_fits_a_frame_by_the_end_of_its_file_and_its_function(pattern, stack, expected):
    assert fits(pattern, *stack) is expected


@pytest.mark.parametrize("pattern", ["*a*" * 40 + "b", "*/a*" * 40 + "/b.py:*a*a*a*b"])
def test_no_pattern_takes_long(pattern):
    begin = time.process_time()
    assert not fits(pattern, ("a" * 50_000, "/a" * 50_000))
    assert time.process_time() - begin < 5


# --- what rules do

MAIN = [frame("<module>", "/home/me/project/train.py")]
ALLOCATE = [frame("allocate_cache", "/home/me/project/serving/cache.py"), *MAIN]
COLLECTIVE = [
    frame("all_gather", "/x/site-packages/torch/distributed/distributed_c10d.py"),
    *ALLOCATE,
]
CACHE = 'activation = ["serving/cache.py:allocate_cache"]\n'
SLUG = "user:serving/cache.py:allocate_cache"


@pytest.fixture
def loaded(tmp_path):
    """What becomes of allocations with these stacks, by a file of rules."""

    def loaded(rules, *stacks):
        model = RecordedAllocator()
        for stack in stacks:
            model.malloc(512, frames=stack)
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(model.snapshot()))
        (tmp_path / "mine.toml").write_text(rules)
        return snapconv.load(path, rules=tmp_path / "mine.toml")

    return loaded


def decisions(session):
    """Category, evidence and rule of every allocation."""
    found = session.devices[0].classification
    return [
        (Category(category), Evidence(evidence), found.reasons[reason])
        for category, evidence, reason in zip(
            found.category, found.evidence, found.reason_id, strict=True
        )
    ]


def test_the_first_pattern_that_fits_decides_before_every_rule_of_ours(loaded):
    session = loaded(CACHE + 'weight = ["allocate_cache"]', COLLECTIVE, MAIN)
    assert decisions(session)[0] == (Category.ACTIVATION, Evidence.USER_RULE, SLUG)
    (explained,) = session.explain("#1").allocations
    decision, others = explained["verdict"]["decision"], explained["verdict"]["others"]
    assert (decision["reason"], decision["torch"]) == ("a rule of yours", None)
    assert [opinion["rule"] for opinion in others] == [
        "user:allocate_cache",
        "collective",
        "named-cache",
    ]
    assert decisions(session)[1] == decisions(loaded("", COLLECTIVE, MAIN))[1]


def test_a_pattern_that_fits_no_frame_gives_a_note(loaded):
    session = loaded('weight = ["alocate"]\n' + CACHE, ALLOCATE)
    (note,) = [note for note in session.notes if note.slug == "unused-rule"]
    assert "alocate (weight) matches no frame" in note.message


def test_every_output_names_the_rule(loaded, tmp_path, monkeypatch):
    loaded(CACHE, ALLOCATE)
    monkeypatch.chdir(tmp_path)
    assert main(["to-sqlite", "run.pickle", "--extended", "--rules", "mine.toml", "-q"]) == 0
    with closing(sqlite3.connect("run.memory.sqlite")) as connection:
        query = "SELECT category, evidence, rule FROM snapconv_allocations_in_words"
        assert connection.execute(query).fetchall() == [("activation", "user_rule", SLUG)]


def test_a_wrong_file_of_rules_is_refused_before_the_snapshot_is_read(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text("weight = 1")
    assert (
        main(["to-sqlite", str(tmp_path / "absent.pickle"), "--rules", str(tmp_path / "mine.toml")])
        == 3
    )
    assert "weight: expected a list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[a]\nb = 1\n" + b".".join([b"k"] * 50_000) + b" = 1", "line 3 has more than 500 dots"),
        ((b"k." * 500 + b"k = 1\n") * 250, "Cannot overwrite a value"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b"#" * (256 << 10) + b"#", "256 KiB"),
        (b"a", "line 1|end of document"),
    ],
    ids=["a key of many parts", "many such keys", "deep", "large", "damaged"],
)
def test_a_costly_or_damaged_text_is_refused_at_once(text, reason):
    begin = time.process_time()
    with pytest.raises(ValueError, match=reason):
        read_toml(text)
    assert time.process_time() - begin < 3
