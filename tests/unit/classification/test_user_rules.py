"""A user's own rules: what a file may say, what is wrong with it, and which stacks a rule matches."""

import errno
import json
import os
import pickle
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.user_rules import frame_rules, match_rules
from snapconv.classification.user_rules_file import parse_rules, read_rules, seconds_for, try_patterns
from snapconv.cli.app import main
from snapconv.errors import InputError
from snapconv.snapshot.stack_table import StackInterner
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES
from snapconv.torch_knowledge.frame_roles import Role
from tests.builders import frame

CACHE = {
    "slug": "kv-cache",
    "category": "activation",
    "function": "^allocate_cache$",
    "file": r"serving/cache\.py$",
    "operation": "kv_cache",
    "reason": "our server keeps keys and values here",
}


def rule(**keys):
    """The rule of a file that has one: CACHE with other keys; None leaves one out."""
    raw = {key: value for key, value in (CACHE | keys).items() if value is not None}
    return parse_rules({"rules": [raw]})[0]


def stack_table(*stacks):
    """Stacks of (function, file), leaf first."""
    interner = StackInterner()
    interner.ids([[{"name": n, "filename": f, "line": 1} for n, f in stack] for stack in stacks], str)
    return interner.table()


def matched(rule, *stacks):
    rules = match_rules([rule], stack_table(*stacks))
    return rules.of(0, np.arange(len(stacks), dtype=np.int32)).tolist()


# --- what a file may say


def test_a_rule_has_what_the_file_says(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"rules": [CACHE]}))
    (found,) = read_rules(path)
    assert (found.slug, found.category, found.role) == ("kv-cache", Category.ACTIVATION, None)
    assert (found.function, found.file) == ("^allocate_cache$", r"serving/cache\.py$")
    assert (found.operation, found.is_free_site) == ("kv_cache", False)
    assert found.reason == "our server keeps keys and values here"


def test_toml_shows_the_same_as_json(tmp_path):
    json_file, toml_file = tmp_path / "mine.json", tmp_path / "MINE.TOML"
    json_file.write_text(json.dumps({"rules": [CACHE, {**CACHE, "slug": "other", "free_site": True}]}))
    table = "\n".join(f"{key} = '{value}'" for key, value in CACHE.items())
    toml_file.write_text(
        f"[[rules]]\n{table}\n[[rules]]\n{table}\nfree_site = true\n".replace(
            "'kv-cache'", '"kv-cache"', 1
        ).replace("'kv-cache'", '"other"')
    )
    assert read_rules(toml_file) == read_rules(json_file)


@pytest.mark.parametrize("category", [category for category in Category if category])
def test_a_rule_may_give_every_category_but_unknown(category):
    assert rule(category=category.label).category is category


@pytest.mark.parametrize("role", Role)
def test_a_rule_may_give_every_role_instead(role):
    found = rule(category=None, operation=None, role=role.name.lower())
    assert (found.role, found.category) == (role, None)


def test_a_rule_may_only_name_the_operation():
    found = rule(category=None)
    assert (found.category, found.operation) == (None, "kv_cache")


@pytest.mark.parametrize("left_out", ["function", "file"])
def test_what_is_left_out_matches_everything(left_out):
    frame = ("allocate_cache", "/srv/serving/cache.py")
    other = {"function": ("other", frame[1]), "file": (frame[0], "/other.py")}[left_out]
    assert matched(rule(**{left_out: None}), [other]) == [True]
    assert matched(rule(), [other]) == [False]


def test_an_empty_list_is_no_rules():
    assert parse_rules({"rules": []}) == ()


# --- what is wrong with it


@pytest.mark.parametrize(
    ("keys", "place", "said"),
    [
        ({"function": "f(oo"}, "rules[0].function", r"position 1 of 'f\(oo'"),
        ({"file": "ab)"}, "rules[0].file", "unbalanced parenthesis at position 2"),
        ({"function": "a{99999999999999}"}, "rules[0].function", "regular expression"),
        ({"function": "[[a]"}, "rules[0].function", "set difference|nested set"),
        ({"slug": None}, "rules[0].slug", "every rule needs it"),
        ({"reason": None}, "rules[0].reason", "every rule needs it"),
        ({"slug": "KV cache"}, "rules[0].slug", "small letters"),
        ({"slug": "-"}, "rules[0].slug", "small letters"),
        ({"slug": 7}, "rules[0].slug", "expected text, got int"),
        ({"reason": ""}, "rules[0].reason", "got nothing"),
        ({"category": "weights"}, "rules[0].category", "expected one of weight, gradient"),
        ({"category": "unknown"}, "rules[0].category", "got 'unknown'"),
        ({"category": None, "operation": None, "role": "buffer"}, "rules[0].role", "engine, release"),
        ({"role": "engine"}, "rules[0].role", "either role, or category"),
        (
            {"role": "engine", "category": None, "operation": None, "free_site": True},
            "rules[0].free_site",
            "any stack",
        ),
        ({"category": None, "operation": None}, "rules[0].category", "needs category, role or operation"),
        ({"function": None, "file": None}, "rules[0].function", "would match every frame"),
        ({"free_site": "yes"}, "rules[0].free_site", "true or false, got str"),
        ({"fonction": "x"}, "rules[0].fonction", "no such key; there are: slug"),
    ],
)
def test_a_wrong_key_is_an_error_that_names_the_place(keys, place, said):
    with pytest.raises(InputError, match=said) as wrong:
        rule(**keys)
    assert str(wrong.value).startswith(f"{place}: ")


def test_an_error_names_the_rule():
    with pytest.raises(InputError, match=r"^rules\[1\]\.file: .*\(rule second\)$"):
        parse_rules({"rules": [CACHE, CACHE | {"slug": "second", "file": "("}]})


@pytest.mark.parametrize("slug", ["kv-cache", FRAME_RULES[0].slug, "kept-after-backward", "none"])
def test_a_slug_names_one_rule_only(slug):
    with pytest.raises(InputError, match=rf"rules\[1\]\.slug: there is another rule {slug}"):
        parse_rules({"rules": [CACHE, CACHE | {"slug": slug}]})


@pytest.mark.parametrize("values", [None, [], "rules", {}, {"rules": {}}, {"rule": [CACHE]}])
def test_a_file_without_a_list_of_rules_shows_how_to_write_one(values):
    with pytest.raises(InputError, match=r"begin each with \[\[rules\]\]"):
        parse_rules(values)


def test_a_key_beside_the_rules_is_named():
    with pytest.raises(InputError, match=r"^roles: no such key"):
        parse_rules({"rules": [], "roles": []})


def test_a_rule_that_is_no_table_is_named():
    with pytest.raises(InputError, match=r"^rules\[1\]: expected a table of keys, got str"):
        parse_rules({"rules": [CACHE, "kv-cache"]})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mine.yaml", b"rules: []", r"\.toml or \.json"),
        ("mine", b"{}", r"\.toml or \.json"),
        ("mine.json", b'{"rules": [}', "no JSON: .*line 1 column 12"),
        ("mine.json", b'{"rules": [{"slug": "\xff"}]}', "UTF-8: byte 21"),
        ("mine.json", b"[" * 1_000_000, "nested too deep"),
        ("mine.json", b'{"rules": [{}]}', r"rules\[0\]\.slug"),
        pytest.param("mine.toml", b"[[rules]]\nslug = 'a'\nb c", "no TOML: .*line 3"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_place(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as wrong:
        read_rules(path)
    assert str(wrong.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_is_an_error_of_ours(tmp_path):
    said = re.escape(os.strerror(errno.ENOENT))
    with pytest.raises(InputError, match=rf"nowhere\.json: cannot be read: {said};"):
        read_rules(tmp_path / "nowhere.json")


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rules-file.md"


def example(language):
    """The example of the page in a language."""
    return re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)


@pytest.mark.parametrize(("language", "n_rules"), [("toml", 3), ("json", 1)])
def test_the_examples_of_the_page_are_rules(tmp_path, language, n_rules):
    path = tmp_path / f"page.{language}"
    path.write_text(example(language))
    assert len(read_rules(path)) == n_rules


def test_the_page_has_every_key_and_every_role():
    described = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    roles = [role.name.lower() for role in Role]
    assert sorted(described) == sorted([*CACHE, "free_site", "role", *roles])
    for category in list(Category)[1:]:
        assert f"`{category.label}`" in PAGE.read_text(encoding="utf-8")


def test_the_error_of_the_page_is_that_of_the_program():
    with pytest.raises(InputError) as wrong:
        rule(function="^allocate(cache")
    assert f"mine.toml: {wrong.value}\n" in PAGE.read_text(encoding="utf-8")


# --- which stacks a rule matches


def test_both_patterns_must_fit_one_frame():
    frame = ("allocate_cache", "/srv/serving/cache.py")
    halves = [(frame[0], "/srv/main.py"), ("main", frame[1])]
    assert matched(rule(), [frame], halves, [], [("main", "/srv/main.py"), frame]) == [
        True,
        False,
        False,
        True,
    ]


def test_paths_of_windows_are_searched_with_forward_slashes():
    assert matched(rule(), [("allocate_cache", r"C:\srv\serving\cache.py")]) == [True]


def test_an_allocation_without_a_stack_matches_nothing():
    everything = match_rules([rule(function=".", file=None)], stack_table([("f", "a.py")]))
    assert everything.of(0, np.array([-1, 0], np.int32)).tolist() == [False, True]


def test_a_file_without_stacks_matches_nothing():
    assert match_rules([rule()], stack_table()).of(0, np.array([-1], np.int32)).tolist() == [False]


def test_roles_of_the_user_come_before_ours():
    role = rule(category=None, operation=None, role="optimizer")
    first, *others = frame_rules([rule(slug="other"), role])
    assert (first.slug, first.role, first.reason) == ("kv-cache", Role.OPTIMIZER, CACHE["reason"])
    assert tuple(others) == FRAME_RULES


# --- what rules do

MAIN = [frame("<module>", "/home/me/project/train.py")]
ALLOCATE = [frame("allocate_cache", "/home/me/project/serving/cache.py"), *MAIN]
RELEASE = [frame("release_cache", "/home/me/project/serving/cache.py"), *MAIN]
COLLECTIVE = [frame("all_gather", "/x/site-packages/torch/distributed/distributed_c10d.py"), *ALLOCATE]
STEP = [frame("update", "/home/me/project/lion.py"), *MAIN]


@pytest.fixture
def loaded(tmp_path):
    """What becomes of (frames, frames of the free or None) in turn, with rules as in a file."""

    def loaded(*rules, jobs):
        model = CachingAllocator()
        for frames, freed in jobs:
            addr = model.malloc(512, frames=frames)
            if freed is not None:
                model.free(addr, frames=freed)
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(model.snapshot()))
        (tmp_path / "mine.json").write_text(json.dumps({"rules": rules}))
        return snapconv.load(path, rules=tmp_path / "mine.json")

    return loaded


def decisions(session):
    """Category, evidence and rule of every allocation."""
    found = session.devices[0].classification
    return [
        (Category(category), Evidence(evidence), found.reasons[reason])
        for category, evidence, reason in zip(found.category, found.evidence, found.reason_id, strict=True)
    ]


MINE = (Category.ACTIVATION, Evidence.USER_RULE, "kv-cache")


def test_a_rule_decides_before_every_rule_of_ours(loaded):
    jobs = [(COLLECTIVE, None), (MAIN, None)]
    assert decisions(loaded(jobs=jobs))[0][2] == "collective"
    assert decisions(loaded(CACHE, jobs=jobs))[0] == MINE
    assert decisions(loaded(CACHE, jobs=jobs))[1] == decisions(loaded(jobs=jobs))[1]


def test_the_first_rule_that_matches_decides(loaded):
    second = CACHE | {"slug": "second", "category": "weight", "operation": "other"}
    session = loaded(CACHE, second, jobs=[(ALLOCATE, None)])
    assert decisions(session) == [MINE]
    assert session.explain("#1").allocations[0].origin.operation == "kv_cache"
    assert session.explain("#1").allocations[0].verdict.others[0].rule == "second"


def test_a_rule_about_the_free_site_looks_at_who_freed(loaded):
    rule = CACHE | {"function": "release_cache", "free_site": True}
    session = loaded(rule, jobs=[(MAIN, RELEASE), (RELEASE, MAIN)])
    assert [decision == MINE for decision in decisions(session)] == [True, False]
    assert session.devices[0].operations[session.devices[0].operation_id[0]] == "kv_cache"


def test_where_frees_repeat_their_allocs_a_rule_about_frees_has_no_effect_and_gives_a_note(loaded):
    rule = CACHE | {"free_site": True}
    about_allocs = CACHE | {"slug": "about-allocs", "category": "weight"}
    session = loaded(rule, about_allocs, jobs=[(ALLOCATE, ALLOCATE)])
    assert decisions(session)[0] == (Category.WEIGHT, Evidence.USER_RULE, "about-allocs")
    (note,) = [note for note in session.notes if note.slug == "unused-rule"]
    assert "kv-cache is about frees" in note.message


def test_a_rule_that_matches_no_frame_gives_a_note(loaded):
    session = loaded(CACHE, CACHE | {"slug": "typo", "function": "alocate"}, jobs=[(ALLOCATE, None)])
    (note,) = [note for note in session.notes if note.slug == "unused-rule"]
    assert "typo matches no frame" in note.message


def test_a_role_lets_our_own_rules_conclude(loaded):
    rule = {"slug": "lion", "role": "optimizer", "file": r"lion\.py$", "reason": "our optimizer"}
    jobs = [(STEP, None), (STEP, [frame("update", "/home/me/project/lion.py", 8), *MAIN]), (MAIN, None)]
    assert [decision[2] for decision in decisions(loaded(rule, jobs=jobs))][:2] == [
        "made-in-step-and-kept",
        "made-in-step-and-freed",
    ]
    assert "made-in-step-and-kept" not in [decision[2] for decision in decisions(loaded(jobs=jobs))]


def test_the_explanation_has_the_reason_of_the_rule(loaded):
    (explained,) = loaded(CACHE, jobs=[(COLLECTIVE, None)]).explain("#1").allocations
    assert (explained.verdict.decision.rule, explained.verdict.decision.evidence) == ("kv-cache", "user_rule")
    assert (explained.verdict.decision.reason, explained.verdict.decision.torch) == (CACHE["reason"], None)
    assert (explained.origin.operation, explained.origin.operation_from) == ("kv_cache", "your rule kv-cache")
    assert [opinion.rule for opinion in explained.verdict.others] == ["collective", "named-cache"]


def test_every_output_names_the_rule(loaded, tmp_path, monkeypatch):
    loaded(CACHE, jobs=[(ALLOCATE, None)])
    monkeypatch.chdir(tmp_path)
    argv = [
        "to-sqlite",
        str(tmp_path / "run.pickle"),
        "--extended",
        "--rules",
        str(tmp_path / "mine.json"),
        "-q",
    ]
    assert main(argv) == 0
    with closing(sqlite3.connect(tmp_path / "run.memory.sqlite")) as connection:
        query = "SELECT category, evidence, rule, operation FROM snapconv_allocations_in_words"
        assert connection.execute(query).fetchall() == [("activation", "user_rule", "kv-cache", "kv_cache")]


def test_a_wrong_file_of_rules_is_refused_before_the_snapshot_is_read(tmp_path, capsys):
    (tmp_path / "mine.json").write_text('{"rules": [{}]}')
    assert main(["to-sqlite", str(tmp_path / "absent.pickle"), "--rules", str(tmp_path / "mine.json")]) == 3
    assert "rules[0].slug" in capsys.readouterr().err


# --- what a pattern may cost

LETTERS = "a" * 60


@pytest.mark.parametrize("key", ["function", "file"])
def test_a_pattern_that_takes_for_ever_is_refused(monkeypatch, key):
    monkeypatch.setattr("snapconv.classification.user_rules_file._SECONDS", 0.5)
    ours = rule(**{"function": None, "file": None, key: "(a|a)*b"})
    with pytest.raises(InputError, match=rf"the pattern of {key} takes .* \(rule kv-cache\)"):
        try_patterns([ours], stack_table([(LETTERS, LETTERS)]).frames)


def test_the_refusal_names_the_rule_whose_pattern_was_searched_last(monkeypatch):
    def run(command, *, timeout, **_keys):
        raise subprocess.TimeoutExpired(command, timeout, b"0\n1\n")

    monkeypatch.setattr("subprocess.run", run)
    ours = [rule(slug=slug, function="(a|b)*", file=None) for slug in ("first", "second", "third")]
    with pytest.raises(InputError, match=r"more than 10 s .*\(rule second\)"):
        try_patterns(ours, stack_table([("f", "f.py")]).frames)


def test_the_refusal_names_the_first_rule_where_the_process_has_not_said_any(monkeypatch):
    def run(command, *, timeout, **_keys):
        raise subprocess.TimeoutExpired(command, timeout, None)

    monkeypatch.setattr("subprocess.run", run)
    ours = [rule(slug=slug, function="(a|b)*", file=None) for slug in ("first", "second", "third")]
    with pytest.raises(InputError, match=r"\(rule first\)"):
        try_patterns(ours, stack_table([("f", "f.py")]).frames)


@pytest.mark.parametrize(("n_mib", "seconds"), [(0, 10), (50, 20), (150, 40)])
def test_names_of_50_mib_have_as_much_time_again(n_mib, seconds):
    assert seconds_for(n_mib << 20) == seconds


def test_where_no_process_can_be_started_patterns_are_not_tried(monkeypatch):
    def run(*_args, **_keys):
        raise OSError("no processes here")

    monkeypatch.setattr("subprocess.run", run)
    try_patterns([rule(function="(a|a)*b", file=None)], stack_table([(LETTERS, LETTERS)]).frames)


@pytest.mark.parametrize("name", [LETTERS, "", "nul\0", "\udcff", "C:\\x.py"])
def test_a_pattern_with_repetitions_that_takes_little_is_not_refused(name):
    try_patterns([rule(function="^(a|b)+.*$", file=".*[.]py(c?)")], stack_table([(name, name)]).frames)


@pytest.mark.parametrize("pattern", [r"^f$", r"a\.b\(c\)\*", "[a-z]x", r"\bstep_\d"])
def test_a_pattern_without_repetition_starts_no_process(monkeypatch, pattern):
    monkeypatch.setattr("subprocess.run", lambda *_args, **_keys: pytest.fail("a process"))
    try_patterns([rule(function=pattern, file=None)], stack_table([(LETTERS, LETTERS)]).frames)


@pytest.mark.parametrize("pattern", ["a*", "(a)", "a?", "a|b", "a{9}"])
def test_a_pattern_that_may_repeat_is_tried(monkeypatch, pattern):
    tried = []
    monkeypatch.setattr("subprocess.run", lambda command, **_keys: tried.append(command))
    try_patterns([rule(function=pattern, file=None)], stack_table([(LETTERS, LETTERS)]).frames)
    assert len(tried) == 1


def test_a_command_refuses_a_pattern_that_takes_for_ever(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("snapconv.classification.user_rules_file._SECONDS", 0.5)
    file, rules = tmp_path / "x.pickle", tmp_path / "rules.json"
    event = {"action": "alloc", "addr": 0, "size": 512, "frames": [frame(name=LETTERS)]}
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}))
    rules.write_text(json.dumps({"rules": [CACHE | {"function": "(a|a)*b"}]}))
    assert main(["summary", str(file), "--rules", str(rules)]) == 3
    assert "(rule kv-cache)" in capsys.readouterr().err


def test_there_may_be_so_many_rules_and_characters_of_patterns():
    parse_rules({"rules": [CACHE | {"slug": f"r{i}"} for i in range(200)]})
    with pytest.raises(InputError, match="there are 201 rules"):
        parse_rules({"rules": [CACHE | {"slug": f"r{i}"} for i in range(201)]})
    rule(function="a" * 10_000, file=None)
    with pytest.raises(InputError, match="have 10001 characters"):
        rule(function="a" * 10_000, file="b")
