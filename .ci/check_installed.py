"""Ask of an installed headlens what a user would: every module, and every command, away from the checkout.

`PYTHON .ci/check_installed.py CHECKOUT` with the Python that headlens is installed for. Every module of the checkout
must be importable from the installed package, and each command must show its help and do a small run in an
empty folder. Ends with a line per command, or with the first thing that does not work.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RECIPE = """
[paper]
title = "A paper"
citation = "Nobody, nowhere"
setting = "Everything is ours."

[[steps]]
name = "counted"
command = "masks"
why = "a table"
pattern = ["star"]
length = 16
figures = false

[[tables]]
title = "Masked"
step = "counted"
file = "sparsity.csv"

[[tables.columns]]
name = "sparsity"
value = "sparsity"

[[tables.rows]]
label = "star"
where = { pattern = "star" }
"""

# The words of a small run of each command, and a file that the run leaves.
_FEW = ["--limit", "16", "--seed", "1"]
_STEPS = ["--task", "paraphrase", "--steps", "2", *_FEW]
_GRAPHS = ["--epochs", "1", "--methods", "clusters=2,thresholds=1,groups=2,top=1,windows=1"]
COMMANDS: dict[str, tuple[list[str], str]] = {
    "classify": (["--limit", "30", "--out", "classify"], "classify/heads.csv"),
    "relevance": (["--limit", "6", "--replicates", "100", "--out", "relevance"], "relevance/relevance.csv"),
    "attend": (
        ["demo", "--text", "The cat sleeps.", "--layer", "2", "--out", "attend"],
        "attend/attention.safetensors",
    ),
    "ablate": (["--replicates", "100", *_FEW, "--out", "ablate"], "ablate/ablation.csv"),
    "masks": (["--length", "32", "--out", "masks"], "masks/sparsity.csv"),
    "sparsefinder": ([*_GRAPHS, "--methods", "points=1", "--no-figures", *_FEW, "--out", "sf"], "sf/pareto.csv"),
    "probe": (["--replicates", "100", "--limit", "30", "--out", "probe"], "probe/probe_weights.csv"),
    "prune": (["--lambdas", "0.1", *_STEPS, "--out", "prune"], "prune/sweep.csv"),
    "compact": (
        ["demo", "--heads", "encoder.3.1", "--limit", "4", "--data-args", "rounds=2", "--out", "c"],
        "c/compact.csv",
    ),
    "train": (["demo", *_STEPS, "--out", "train"], "train/model/config.json"),
    "train-dam": (["--lambdas", "0.1", *_STEPS, "--out", "dam"], "dam/sweep.csv"),
    "models": (["check", "demo"], ""),
    "reproduce": (["recipe.toml", "--out", "own"], "own/comparison.csv"),
}


def modules(checkout: Path) -> list[str]:
    """The name of every module of the checkout, as it is imported once installed."""
    packages = {"headlens": "headlens", "cli": "headlens_cli"}
    names = []
    for folder, package in packages.items():
        for path in sorted((checkout / folder).rglob("*.py")):
            parts = path.relative_to(checkout / folder).with_suffix("").parts
            names.append(".".join([package, *(part for part in parts if part != "__init__")]))
    return [name for name in names if not name.endswith(".__main__")]


def check_modules(checkout: Path) -> None:
    """Import every module; none may come from the checkout."""
    names = modules(checkout)
    assert len(names) > 100, names
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # CUDA builds of torch bring the one, and only its kernels need it; an extra brings the other.
            if error.name not in ("triton", "lm_eval"):
                raise
            continue
        assert module.__file__ is not None, name
        home = Path(module.__file__).resolve()
        assert checkout.resolve() not in home.parents, f"{name} was imported from the checkout: {home}"
    print(f"{len(names)} modules of headlens {sys.modules['headlens'].__version__} imported")


def call(*words: str, folder: Path) -> str:
    """What the installed program prints; it must succeed."""
    program = Path(sys.executable).with_name("headlens")
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"headlens {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_command(name: str, folder: Path, words: list[str], left: str) -> None:
    """A command must name itself in its help, end with 0, print something and leave the file that it is for."""
    start = time.perf_counter()
    assert f"headlens {name}" in call(name, "--help", folder=folder)
    assert call(name, *words, folder=folder).strip()
    assert (folder / left).exists(), f"headlens {name} did not write {left}"
    print(f"headlens {name}: {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    checkout = Path(sys.argv[1])
    check_modules(checkout)
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(empty)
        listed = call("--help", folder=folder)
        missing = [name for name in (*COMMANDS, "report") if name not in listed]
        assert not missing, missing
        (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        assert call("classify", "--dry-run", folder=folder).strip()
        with ThreadPoolExecutor(2) as pool:  # mostly imports, which take one core
            list(pool.map(lambda name: check_command(name, folder, *COMMANDS[name]), COMMANDS))
        check_command("report", folder, ["classify", "--out", "page"], "page/report.html")


if __name__ == "__main__":
    main()
