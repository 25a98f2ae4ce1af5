"""Ends with 1 where a tag is not the version of the package: `python .ci/check_tag.py v0.2.0`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
tag, text = sys.argv[1], (ROOT / "headlens" / "__init__.py").read_text(encoding="utf-8")
version = re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
if [tag] != [f"v{own}" for own in version]:
    sys.exit(f"The tag is {tag}, and the version of the package {' '.join(version)}.")
