"""Chromium with its driver, for pages that `snapconv view` wrote; without them these tests are skipped.

The browser has no network of its own here to fall back on: every request that it makes is in its
log, and a page that makes one, or that writes anything to the console, fails its test.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapconv import load

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
OWN = ("file:", "data:", "blob:", "about:", "chrome:")
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
FIXTURES = Path(__file__).parents[2] / "fixtures"
READY = "return document.documentElement.dataset.state === 'ready'"


class Browser:
    """What a test does with a page: open it, look at its text, press, click, and see what was logged."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, fragment: str = "", *, width: int = 1280, height: int = 900) -> None:
        """Open a page and wait until all of it is read."""
        self.resize(width, height)
        uri = page.resolve().as_uri()
        if self.driver.current_url.startswith(uri):
            self.driver.get("about:blank")  # another fragment alone would not load it again
        self.driver.get(uri + fragment)
        self.wait(READY)

    def resize(self, width: int, height: int) -> None:
        """Give the page itself a width, which no window of a desktop goes below 500 pixels for."""
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)

    def scheme(self, name: str) -> None:
        """Let the system be light or dark."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def wait(self, script: str) -> Any:
        """The first value of a script that is true."""
        found = "const value = test(); value ? done({value}) : setTimeout(look, 5)"
        return self._later(f"const look = () => {{ {found} }}; look()", script)

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script, when the next frame is drawn."""
        drawn = "requestAnimationFrame(() => setTimeout(() => {%s}))"
        then = "try { done({value: test()}) } catch (error) { done({error: String(error)}) }"
        return self._later(drawn % then, script, *arguments)

    def _later(self, how: str, script: str, *arguments: object) -> Any:
        """The value of a script that is run in some way, in one message to the browser."""
        given = "const given = [...arguments], done = given.pop();"
        test = f"const test = () => (function () {{ {script} }})(...given);"
        found = self.driver.execute_async_script(given + test + how, *arguments)
        assert "error" not in found, found["error"]
        return found.get("value")

    def texts(self, selector: str) -> list[str]:
        """The text of every element that a selector finds."""
        return self.each(selector, "e.textContent")

    def each(self, selector: str, expression: str) -> list[Any]:
        """The value of an expression for every element ``e`` that a selector finds."""
        script = f"return [...document.querySelectorAll(arguments[0])].map(e => {expression})"
        return list(self.run(script, selector))

    def text(self, selector: str) -> str:
        """The text of the one element that a selector finds."""
        (text,) = self.texts(selector)
        return text

    def press(self, *keys: str) -> None:
        """Press keys where nothing has the focus."""
        event = "new KeyboardEvent('keydown', {key, bubbles: true})"
        each = f"for (const key of arguments) document.body.dispatchEvent({event})"
        self.driver.execute_script(f"document.activeElement.blur(); {each}", *keys)

    def choose(self, text: str) -> None:
        """Click the visible button with this text."""
        self.run(
            "const shown = [...document.querySelectorAll('button')].filter(b => b.offsetParent);"
            "const found = shown.filter(b => b.textContent === arguments[0]);"
            "if (found.length !== 1) throw Error(arguments[0] + ': ' + found.length); "
            "found[0].click()",
            text,
        )

    def click_timeline(self, share: float, from_top: int | None = None) -> None:
        """Click the timeline at this share of its axis, by default in its curves."""
        script = (
            "const c = document.querySelector('.overlay'), b = c.getBoundingClientRect();"
            "const x = b.left + 58 + (b.width - 66) * arguments[0], "
            "y = b.top + (arguments[1] ?? b.height - 60);"
            "for (const type of ['pointerdown', 'pointerup'])"
            "  c.dispatchEvent(new PointerEvent(type, {clientX: x, clientY: y, pointerId: 1, "
            "bubbles: true}))"
        )
        self.driver.execute_script(
            "HTMLElement.prototype.setPointerCapture = () => {};" + script, share, from_top
        )

    def logged(self) -> list[str]:
        """What was written to the console, and every request for anything but the page; then forgets it."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                found += [] if url.startswith(OWN) else [f"requested: {url}"]
        return found


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if BROWSER is None or DRIVER is None:
        pytest.skip("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The browser; a test fails where the page logged an error or requested anything."""
    shared_browser.scheme("light")
    shared_browser.logged()
    yield shared_browser
    assert shared_browser.logged() == []


@pytest.fixture(scope="session")
def pages_of_fixtures() -> dict[tuple[Path, Path | None], Path]:
    """The pages that are there already: of what no test changes."""
    return {}


@pytest.fixture
def page_of(tmp_path: Path, pages_of_fixtures: dict[tuple[Path, Path | None], Path]) -> Any:
    """Write the page of a file, or of two; that of a fixture once."""

    def page_of(path: Path, other: Path | None = None) -> Path:
        if (path, other) in pages_of_fixtures:
            return pages_of_fixtures[path, other]
        session = load(path if other is None else other)
        page = session.view(tmp_path / "page.html", compared_with=other and load(path)).path
        if path.is_relative_to(FIXTURES):
            pages_of_fixtures[path, other] = page
        return page

    return page_of
