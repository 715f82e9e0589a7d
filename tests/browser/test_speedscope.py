"""Profiles of `snapconv export` in speedscope's own page, from its npm package, without a network."""

import base64
import json
import re
from pathlib import Path

import pytest

from snapconv import load
from snapconv.cli.app import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "web/node_modules/speedscope/dist/release/index.html"
FIXTURES = ROOT / "fixtures"
ROWS = "return [...document.querySelectorAll('tr')].map(row => row.textContent)"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="speedscope is not installed: npm ci in web/")


@pytest.fixture
def speedscope(shared_browser, tmp_path):
    """Open a profile as speedscope's command line does: by a script beside the page."""

    def opened(profile):
        content = base64.b64encode(profile.read_bytes()).decode()
        script = tmp_path / "profile.js"
        script.write_text(f"speedscope.loadFileFromBase64({json.dumps(profile.name)}, {json.dumps(content)})")
        shared_browser.driver.get("about:blank")
        shared_browser.driver.get(f"{PAGE.as_uri()}#localProfilePath={script}")
        shared_browser.wait("return document.body.textContent.includes('live at')")
        return shared_browser

    yield opened
    assert not [line for line in shared_browser.logged() if line.startswith("requested:")]


@pytest.mark.parametrize("name", ["training_step", "several_streams"])
def test_speedscope_counts_the_allocated_bytes_of_the_moment(speedscope, tmp_path, name):
    source, profile = FIXTURES / f"{name}.pickle", tmp_path / "out.speedscope.json"
    assert main(["export", str(source), "--format", "speedscope", "-o", str(profile), "-q"]) == 0
    page = speedscope(profile)
    (state,) = load(source).at()
    found = re.search(r"cuda:0, live at the peak \(1/(\d+)\)", page.text("body"))
    n_categories = sum(row.n_allocations > 0 for row in state.categories)
    assert int(found[1]) == 1 + n_categories  # a profile of all, and of every category
    page.run(
        "[...document.querySelectorAll('div')].filter(e => e.textContent.endsWith('Sandwich')).at(-1).click()"
    )
    page.wait("return document.querySelectorAll('tr').length > 1")
    # The frame in which all of it is allocated has the whole: speedscope shows it in units of 1,024.
    row = next(row for row in page.run(ROWS) if "(100%)" in row)
    value, unit = re.search(r"([\d.]+) ([KMG]?)B \(100%\)", row).groups()
    shown = float(value) * 1024 ** " KMG".index(unit or " ")
    assert shown == pytest.approx(state.allocated_bytes, rel=0.005)
