"""README.md as a package index shows it: links to files lead to the project's home, once pyproject.toml states one."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def absolute(text: str, home: str) -> str:
    """With the links of a Markdown text that name files of the repository; an image is the file itself."""
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({home}/{'raw' if m[1] else 'blob'}/HEAD/{m[3]})", text)


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        home = metadata.get("urls", {}).get("Repository", "").rstrip("/")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, home) if home else text}
