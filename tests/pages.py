"""Read the data of a page that ``snapconv view`` wrote."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any


def page_values(path: Path, part: str = "page") -> Any:
    """Return the plain values of a page's part: ``page``, or ``0.detail`` of its first device."""
    match = re.search(rb'id="%s">([^<]*)<' % part.encode(), path.read_bytes())
    assert match
    return json.loads(zlib.decompress(base64.b64decode(match.group(1))))
