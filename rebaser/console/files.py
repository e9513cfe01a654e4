"""The files that a browser loads, read once at the start.

Invariants: a path is looked up among the files that were read, so no path of a request ever reaches the file system.
Scripts and styles are served without indentation and lines of comments, and styles without needless spaces, a tenth of
their size; each line keeps its number, so that messages of a browser name the line in the repository.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NEEDLESS = re.compile(rb"^[ \t]*(?:// .*|/\*.*\*/)$|^[ \t]+", re.MULTILINE)
STRIPPED = (".css", ".js")
SPACE = re.compile(rb"(?<=[;:,{]) +| +(?=[{}])|;(?= *})")  # in styles, whose texts have none of these characters


@dataclass(frozen=True, slots=True)
class StaticFile:
    """The content of a file, its media type, and a tag that changes with the content."""

    content: bytes
    media_type: str
    tag: str


def read_files() -> Mapping[str, StaticFile]:
    """Return the files by their paths below the folder, such as `js/app.js`. Blocks."""
    found = {}
    for path in sorted(FOLDER.rglob("*.*")):
        media_type = TYPES.get(path.suffix)
        if media_type is not None:
            content = path.read_bytes()
            if path.suffix in STRIPPED:
                content = NEEDLESS.sub(b"", content)
            if path.suffix == ".css":
                content = SPACE.sub(b"", content)
            found[path.relative_to(FOLDER).as_posix()] = StaticFile(content, media_type, tag_of(content))
    return found


def tag_of(content: bytes) -> str:
    """Return the tag of a file's content."""
    return f'"{hashlib.sha256(content).hexdigest()[:20]}"'
