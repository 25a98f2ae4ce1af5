"""Print the lowest versions that pyproject.toml allows for this Python, as constraints for pip.

`python .ci/lowest.py > lowest.txt && pip install -c lowest.txt -e '.[demo,dev]'` installs the oldest supported set.
Development tools are left as they are: nobody needs old linters.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

for requirement in map(Requirement, PROJECT["dependencies"]):
    lowest = [bound.version for bound in requirement.specifier if bound.operator == ">="]
    if lowest and (requirement.marker is None or requirement.marker.evaluate()):
        print(f"{requirement.name}=={lowest[0]}")
