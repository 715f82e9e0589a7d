"""Work that waits for an import, with modules made for it."""

import importlib.util
import os
import sys

import pytest

from snapconv.guest.import_hook import when_imported

NAME = "imported_late"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """A package that says when it runs, and with which loader."""
    (tmp_path / NAME).mkdir()
    file = tmp_path / NAME / "__init__.py"
    file.write_text("import sys\nfrom . import part\nloader = type(__loader__).__name__\n")
    (tmp_path / NAME / "part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    before = sys.meta_path[:]
    yield file
    assert sys.meta_path == before
    for name in (NAME, f"{NAME}.part"):
        sys.modules.pop(name, None)


def test_the_work_is_done_when_the_whole_module_has_run():
    seen = []
    with when_imported(NAME, lambda: seen.append(sys.modules[NAME].loader)):
        assert seen == []
        import imported_late  # type: ignore[import-not-found]

        assert seen == ["SourceFileLoader"]
    assert type(imported_late.__loader__).__name__ == "SourceFileLoader"
    assert imported_late.__spec__.loader is imported_late.__loader__


def test_where_the_module_is_there_the_work_is_done_at_once():
    import imported_late  # noqa: F401  # what counts is that it is

    seen = []
    with when_imported(NAME, lambda: seen.append("work")):
        assert seen == ["work"]


def test_to_look_for_the_module_is_no_import():
    seen = []
    with when_imported(NAME, lambda: seen.append("work")):
        spec = importlib.util.find_spec(NAME)
        assert spec.loader.is_package(NAME)  # what other loaders can say
        assert seen == []
        import imported_late  # noqa: F401
    assert seen == ["work"]


def test_a_module_that_fails_does_no_work_and_may_be_imported_again(module):
    good = module.read_text()
    module.write_text("raise ImportError('its own')")
    seen = []
    with when_imported(NAME, lambda: seen.append("work")):
        with pytest.raises(ImportError, match="its own"):
            import imported_late
        assert seen == []
        module.write_text(good + "# and a length of its own")
        importlib.invalidate_caches()
        import imported_late  # noqa: F401
    assert seen == ["work"]


def test_a_module_that_is_reloaded_does_no_work_twice():
    seen = []
    with when_imported(NAME, lambda: seen.append("work")):
        import imported_late

        importlib.reload(imported_late)
    assert seen == ["work"]


def test_after_the_context_nothing_is_done():
    seen = []
    with when_imported(NAME, lambda: seen.append("work")):
        pass
    import imported_late  # noqa: F401

    assert seen == []


def test_a_module_that_is_not_there_is_missing_as_ever():
    with when_imported("not_there_at_all", os.abort), pytest.raises(ModuleNotFoundError):
        import not_there_at_all  # type: ignore[import-not-found]  # noqa: F401
