"""Documents name what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headlens.attention_masks.patterns import PATTERNS
from headlens.metrics.metric_registry import registered_metrics
from headlens_cli import app, command

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ABOUT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
PAGES = (*(ROOT / name for name in ABOUT), *sorted(DOCS.rglob("*.md")))


def prose(page: Path) -> list[str]:
    """The lines of a page outside its fenced blocks."""
    lines: list[str] = []
    fence = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        mark = re.match(r" *(```+|~~~+)", line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
        elif mark:
            fence = mark[1]
        else:
            lines.append(line)
    return lines


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page go, without those to the web."""
    text = re.sub(r"`(?:[^`\n]|\n(?!\s*\n))*`", "", "\n".join(prose(page)))  # code may go on in the next line
    targets = re.findall(r"\]\(\s*<?([^)>\s]+)", text)
    targets += re.findall(r"^ {0,3}\[[^\]]+\]:\s*<?([^>\s]+)", text, flags=re.MULTILINE)
    targets += re.findall(r"<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"", text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page: small letters, digits, hyphens and underscores stay."""
    found: set[str] = set()
    for line in prose(page):
        heading = re.match(r" {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$", line)
        if heading is None:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        repeated = sum(re.fullmatch(re.escape(slug) + r"(-\d+)?", name) is not None for name in found)
        found.add(f"{slug}-{repeated}" if slug in found else slug)
    return found


def test_every_pattern_has_a_class_of_the_survey() -> None:
    """The table of classes has the nine of Tay et al., and no pattern is left out, or named that there is not."""
    text = (DOCS / "explanation/masks.md").read_text(encoding="utf-8")
    section = text.partition("### Among efficient transformers\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| ")]
    classes = [row[0].strip() for row in rows[1:]]
    assert classes == [
        *("fixed patterns", "combination of patterns", "learnable patterns", "neural memory", "low-rank methods"),
        *("kernels", "recurrence", "downsampling", "sparse models"),
    ]
    named = set(re.findall(r"`([a-z-]+)`", section)) - {"sparsefinder", "syntax", "lexical"}
    assert named == set(PATTERNS)


def test_numbers_are_columns_that_are_written() -> None:
    """Every column that docs/numbers.md explains is one of a table, and every module it names is there."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "headlens").rglob("*.py"))
    rows = [
        line.split("|")[1:-1]
        for line in (DOCS / "numbers.md").read_text(encoding="utf-8").splitlines()
        if line[:3] == "| `"
    ]
    names = [name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row[0])]
    assert len(names) > 40
    declared = {name for metric in registered_metrics() for column in metric.columns for name in column.names}
    assert [name for name in names if f'"{name}"' not in source and name not in declared] == []
    # Values of the null head have one line together.
    assert {column.name for metric in registered_metrics() for column in metric.columns} - set(names) == set()
    modules = [name for row in rows for name in re.findall(r"`([a-z_/]+\.py)`", row[-1])]
    assert modules
    assert [name for name in modules if not (ROOT / "headlens" / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_and_links_of_documents_are_there(page: Path) -> None:
    missing: list[str] = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.is_file() or ROOT not in path.parents or (anchor and anchor not in anchors(path)):
            missing.append(target)
    assert missing == []


def test_messages_of_the_errors_page_are_those_of_the_code() -> None:
    """The longest part of each that does not depend on what happened stands in the code."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "headlens").rglob("*.py"))
    rows = re.findall(r"^\| `(.+?)` \|", (DOCS / "reference" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    messages = [row for row in rows if " " in row]
    assert len(messages) >= 20
    parts = [max(re.split(r"…|[,'():]|FILE", message), key=len).strip() for message in messages]
    assert [part for part in parts if part not in code] == []


def test_every_picture_of_the_documents_is_shown() -> None:
    pictures = {*DOCS.rglob("*.png"), *(ROOT / ".github" / "readme").glob("*.png")}
    shown = {(page.parent / target).resolve() for page in PAGES for target in links(page)}
    assert pictures - shown == set()


def shell_code(page: Path) -> str:
    """What a page tells to type, without redirections and examples; empty where no command of headlens is in it."""
    lines: list[str] = []
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^ *```(bash|console)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL):
        code = block.replace("\\\n", " ")
        typed = re.findall(r"^\$ (.+)", code, flags=re.MULTILINE) if language == "console" else [code]
        lines += [re.sub(r"(?m)\s>.*$|^examples/.*$", "", part) for part in typed]
    return "\n".join(lines) if any(re.search(r"(?m)^ *headlens ", line) for line in lines) else ""


def documented_commands(page: Path) -> list[list[str]]:
    """The commands of headlens in a page's blocks, in words as Bash splits them; loops and variables are expanded.

    A restricted shell without a path runs nothing else, writes nothing and stays where it is.
    """
    stub = 'headlens() { printf "%s\\0" "$@"; printf "\\n\\0"; }; command_not_found_handle() { :; }\n'
    bash = shutil.which("bash") or pytest.skip("Bash splits the commands")
    code = stub + shell_code(page)
    shell = [bash, "--restricted", "-c", code]
    said = subprocess.run(shell, check=False, capture_output=True, text=True, env={"PATH": ""}).stdout
    return [words.split("\0")[:-1] for words in said.split("\n\0")[:-1]]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if shell_code(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_options_of_documented_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the request, which nothing is done for; a file of options that a page only names is left out."""
    requests: list[object] = []
    made = command.with_options
    monkeypatch.setattr(
        command, "with_options", lambda _, *a, **k: made(lambda request, screen: requests.append(request), *a, **k)
    )
    monkeypatch.setattr(app, "_built", lambda name: command.COMMANDS[name].build())
    documented = documented_commands(page)
    said = [words for words in documented if words and words[0] in set(command.COMMANDS) - {"models"}]
    typed = [[word for word in words if word != "--dry-run"] for words in said if "--config" not in words]
    assert documented
    for words in typed:
        app.app(words, standalone_mode=False)
    assert len(requests) == sum("--help" not in words and "--help-all" not in words for words in typed)


def test_readme_is_short_and_has_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for mark in ("first result", "tests"):
        block = re.findall(rf"^<!-- command: {mark} -->\n```bash\n(.+?)\n```$", text, flags=re.MULTILINE | re.DOTALL)
        assert len(block) == 1, mark


def test_indexes_link_every_page() -> None:
    """Every page is linked by the index of the site, or by the index of a part that it links."""
    index = DOCS / "index.md"
    linked = linked_pages(index)
    for part in DOCS.glob("*/index.md"):
        assert part in linked
        linked |= linked_pages(part)
    assert set(DOCS.rglob("*.md")) - linked - {index} == set()


def linked_pages(page: Path) -> set[Path]:
    return {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}
