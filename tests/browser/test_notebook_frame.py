"""The frame below a cell of ``%%snapconv``, in a page as a notebook shows it: the page in it works."""

from pathlib import Path

import pytest

pytest.importorskip("IPython", reason="IPython is not installed")

from IPython.utils.capture import capture_output  # after the skip

from snapconv.integrations.notebook import show_capture
from tests.browser.conftest import READY
from tests.notebook_shell import notebook_shell

CAPTURE = Path(__file__).parents[2] / "fixtures" / "transformer.capture"


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with notebook_shell(tmp_path_factory.mktemp("ipython")) as shell:
        yield shell


@pytest.fixture
def frame(browser, tmp_path, shell):
    """The browser within the frame, whose page is read."""
    with capture_output() as captured:
        show_capture(shell, CAPTURE, "run")
    (output,) = captured.outputs
    assert output.data["text/plain"].startswith("cuda:0  peak 64.33 MiB")
    notebook = tmp_path / "notebook.html"
    cell = f'<div style="width:1000px">{output.data["text/html"]}</div>'
    notebook.write_text(
        f'<!doctype html><meta charset="utf-8"><title>n</title>{cell}', encoding="utf-8"
    )
    browser.resize(1280, 900)
    browser.driver.get(notebook.as_uri())
    browser.driver.switch_to.frame(browser.driver.find_element("tag name", "iframe"))
    browser.wait(READY)
    yield browser
    browser.driver.switch_to.default_content()


def test_the_page_opens_in_a_frame_without_an_origin_of_its_own(frame):
    assert frame.run("return origin") == "null"
    assert frame.text(".figure.main .figure-value") == "64.33 MiB"
    assert frame.run("return innerWidth") == 1000
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert frame.run(f"return {width}") <= 0


def test_tabs_rows_and_ranges_work_in_the_frame(frame):
    frame.run("document.querySelector('.live-table tbody tr').click()")
    assert frame.text(".detail code").startswith("snapconv explain")
    for key, tab in (("2", "allocations"), ("3", "map"), ("i", "range"), ("5", "events")):
        frame.press(key)
        assert frame.each("[aria-selected=true]", "e.dataset.tab") == [tab]
        assert frame.run("return document.querySelector('.panel:not([hidden])').offsetHeight") > 100
