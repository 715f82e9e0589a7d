"""Give the package the README for its description, and the addresses of the project.

On a forge, links of the README are paths of the repository; a registry shows it alone, and needs
addresses. A release is built by a workflow, whose environment has the repository's; elsewhere the
README stays as it is.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)")
_MARK = re.compile(r"<!-- (?:run: .*?|end) -->\n")


class Readme(MetadataHookInterface):  # type: ignore[misc] # counts as Any
    """Sets ``readme`` and ``urls``, which pyproject.toml leaves to this."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the description."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        server, repository = (
            os.environ.get("GITHUB_SERVER_URL"),
            os.environ.get("GITHUB_REPOSITORY"),
        )
        if server and repository:
            text = with_addresses(text, f"{server}/{repository}", f"v{metadata['version']}")
            metadata["urls"] = addresses(f"{server}/{repository}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def addresses(repository: str) -> dict[str, str]:
    """Return the addresses that a registry shows beside the package."""
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        **{name: f"{repository}/blob/main/{path}" for name, path in pages.items()},
    }


def with_addresses(text: str, repository: str, tag: str) -> str:
    """Return the README with paths as addresses in a repository, at a tag."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['text']}]({repository}/{kind}/{tag}/{found['target']})"

    return _LINK.sub(link, _MARK.sub("", text))
