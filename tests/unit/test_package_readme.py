"""The README as a registry shows it: no link depends on the files around it."""

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://forge.example/somebody/snapconv"


@pytest.fixture
def hook(monkeypatch):
    """scripts/hatch_readme.py, without the builder that it is a part of."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return runpy.run_path(str(ROOT / "scripts" / "hatch_readme.py"))


def test_every_link_of_a_release_is_an_address_of_a_file_that_is_there(hook):
    text = hook["with_addresses"](
        (ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, "v1.2.3"
    )
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    for target in targets:
        place = re.fullmatch(rf"{REPOSITORY}/(blob|raw)/v1\.2\.3/([^#]+)(#.*)?", target)
        assert place, target
        assert (ROOT / place[2]).exists(), target
        assert (place[1] == "raw") == place[2].endswith(".png")


def test_a_release_has_addresses_of_files_that_are_there(hook):
    addresses = hook["addresses"](REPOSITORY)
    assert {"Source", "Issues", "Documentation", "Changelog"} == set(addresses)
    for address in addresses.values():
        _, is_file, path = address.partition(f"{REPOSITORY}/blob/main/")
        assert not is_file or (ROOT / path).exists()


@pytest.mark.parametrize("is_release", [True, False])
def test_only_a_release_has_addresses(hook, is_release, monkeypatch):
    for name, value in (
        ("GITHUB_SERVER_URL", "https://forge.example"),
        ("GITHUB_REPOSITORY", "somebody/snapconv"),
    ):
        monkeypatch.setenv(name, value) if is_release else monkeypatch.delenv(name, raising=False)
    metadata = {"version": "1.2.3"}
    readme = hook["Readme"]()
    readme.root = str(ROOT)
    readme.update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert (f"]({REPOSITORY}/blob/v1.2.3/CHANGELOG.md)" in metadata["readme"]["text"]) == is_release
