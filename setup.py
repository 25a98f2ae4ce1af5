"""Which packages are installed: `headlens` with all its folders, and the folder `cli` as `headlens_cli`.

Everything else stands in pyproject.toml, where folders can be found or renamed but not both; but for what depends on
where the repository is, which GitHub's workflows say: the addresses of the project, and where links of README lead.
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")  # OWNER/NAME
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
urls: dict[str, str] = {}
if REPOSITORY:
    owner, _, name = REPOSITORY.partition("/")
    home, at = f"https://github.com/{REPOSITORY}", os.environ.get("GITHUB_REF_NAME", "main")
    urls = {
        "Documentation": f"https://{owner.lower()}.github.io/{name}",
        "Source": home,
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    # The package index shows README without the files beside it.
    README = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1https://raw.githubusercontent.com/{REPOSITORY}/{at}/", README)
    README = re.sub(r"(\]\()(?!https?:)", rf"\1{home}/blob/{at}/", README)

setup(
    long_description=README,
    long_description_content_type="text/markdown",
    project_urls=urls,
    packages=[
        *find_packages(include=["headlens", "headlens.*"]),
        "headlens_cli",
        *(f"headlens_cli.{name}" for name in find_packages("cli")),
    ],
)
