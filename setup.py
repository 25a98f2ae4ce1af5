"""Which packages are installed: `headlens` with all its folders, and the folder `cli` as `headlens_cli`.

Everything else stands in pyproject.toml, where folders can be found or renamed but not both.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["headlens", "headlens.*"]),
        "headlens_cli",
        *(f"headlens_cli.{name}" for name in find_packages("cli")),
    ],
)
