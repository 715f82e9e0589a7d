"""Make the pictures of docs/guide/view.md: pages of the fixtures, as Chromium shows them.

    python scripts/make_pictures.py

Needs selenium, Chromium and its driver; fonts differ between systems, so that nobody compares the
files.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
CAPTURE = "fixtures/transformer.capture"
# name: the files, what is chosen, the scheme, the height
PICTURES = {
    "view-live": ([CAPTURE], "#t=live", "light", 1130),
    "view-allocations": ([CAPTURE], "#t=allocations", "dark", 1340),
    "view-map": (["fixtures/training_step.pickle"], "#t=map", "light", 1290),
}
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
)


def main() -> None:
    """Write every picture."""
    from selenium import webdriver

    sys.path.insert(0, str(ROOT))
    from snapconv import load

    driver_path, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver_path or not chromium:
        raise SystemExit(
            "this needs Chromium and its driver (Debian: apt install chromium chromium-driver)"
        )
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="snapconv-pictures-") as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in (*ARGUMENTS, f"--user-data-dir={folder}/profile"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
        for name, (files, fragment, scheme, height) in PICTURES.items():
            page = load(ROOT / files[0]).view(Path(folder) / f"{name}.html").path
            size = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.get(page.as_uri() + fragment)
            while driver.execute_script("return document.documentElement.dataset.state") != "ready":
                time.sleep(0.05)
            time.sleep(0.5)
            driver.save_screenshot(str(FOLDER / f"{name}.png"))
            print(f"wrote {FOLDER.relative_to(ROOT) / name}.png")
        driver.quit()


if __name__ == "__main__":
    main()
