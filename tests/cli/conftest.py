"""Running the command line inside the test process, and a model small enough to do so often."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import typer
from advice import misleading
from declared_tables import undeclared
from every_command import CASES
from forks import Forks
from found_once import programs_found_once  # noqa: F401
from made_tasks import WORDS, sentiment_table, text
from matplotlib.figure import Figure
from saved import build, read_conllu, save
from small_vocabulary import pieces_of, with_pieces
from transformers import BertConfig, BertModel, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from headlens.analyses.commands import commands
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.corpora.sources import demo_corpus
from headlens.corpora.text import split_words
from headlens.models import loading
from headlens.plots import export
from headlens.runs.folder import RunFolder
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.skill import Skill
from headlens_cli.app import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Headlens = Callable[..., Outcome]


def draws(words: list[str]) -> bool:
    """Whether a command line draws figures and could be told not to."""
    own = commands().get(words[0]) if words else None
    return own is not None and "figures" in own.options and not {"--no-figures", "--resume"} & set(words)


@pytest.fixture(scope="module", autouse=True)
def written_tables_are_declared() -> Iterator[None]:
    """Refuses every table of a command that has no schema, and every column that its schema lacks."""
    write = RunFolder.table

    def table(self: RunFolder, name: str, frame: pd.DataFrame) -> Path:
        command = self._record["command"]
        assert undeclared(command, name, frame) == [], f"{name}.csv of {command}"
        return write(self, name, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "table", table)
        yield


# The parser of the command line takes a tenth of a second every time.
_command_line = functools.cache(typer.main.get_command)


@pytest.fixture(scope="module", autouse=True)
def command_line_made_once() -> Iterator[None]:
    """One parser of the command line for all tests of this folder, and no other."""
    split_words("a")  # by what is made of all of Unicode, once in a process: here, not in the first test
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", _command_line)
        yield


@functools.cache
def blank(kind: str) -> bytes:
    """An empty picture."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = export.write_figure(Figure(figsize=(1, 1)), Path(folder, "blank"), [kind])
        return path.read_bytes()


def written_blank(figure: Figure, stem: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Instead of `write_figure`: the files, without what takes long, the picture in them."""
    del figure
    export.check_formats(formats)
    paths = [Path(f"{stem}.{kind}") for kind in export.FORMATS if kind in formats]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blank(path.suffix[1:]))
    return paths


@pytest.fixture
def headlens(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Headlens:
    """Call the program with arguments, in an empty folder, on a screen of 100 columns.

    Figures are drawn in tests marked `figures` only: they take half the time of a small run. A report cannot be told to
    leave them out; its pictures are blank, and so are those of tests marked `figures(blank=True)`, which look for their
    names. Whatever is refused may name only options that there are.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    asked = request.node.get_closest_marker("figures")
    figures = asked is not None
    if asked is None or asked.kwargs.get("blank"):
        monkeypatch.setattr("headlens.runs.folder.write_figure", written_blank)
    else:
        request.getfixturevalue("laid_out")

    def call(*arguments: object) -> Outcome:
        words = [str(argument) for argument in arguments]
        words += ["--no-figures"] if not figures and draws(words) else []
        monkeypatch.setattr(sys, "argv", ["headlens", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        if end.value.code == 2:
            assert misleading(words, shown.err) == [], shown.err
        return Outcome(int(end.value.code or 0), shown.out, shown.err)

    return call


def with_pieces_of(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], folder: Path) -> PreTrainedTokenizerBase:
    """A WordPiece tokenizer with the pieces that these texts need, which it splits as before, and single letters."""
    used = {piece for text in texts for piece in tokenizer.tokenize(text)}
    letters = {p for p in pieces_of(tokenizer) if len(p.removeprefix("##")) == 1 and p.isascii()}
    return with_pieces(tokenizer, used | letters, folder)


loaded_once = functools.cache(loading.load)


@pytest.fixture
def loads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is read when the first of many tests names it: for those of what is refused before it is changed."""
    monkeypatch.setattr("headlens.runs.run.load", loaded_once)


@pytest.fixture(scope="session")
def wordpiece_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """MiniLM's, with those of its 30,522 pieces that short texts of tests and the demo's first sentences have."""
    short = ("she sold books to a cat", "the dog, teacher, river sleeps sings waits runs stays in the house")
    texts = [" ".join(WORDS), *short, *(sentence.text for sentence in islice(read_conllu(demo_corpus().path), 60))]
    return with_pieces_of(wordpiece_tokenizer, texts, tmp_path_factory.mktemp("models") / "few-pieces")


@pytest.fixture(scope="session")
def tokenizer_of_made_texts(
    tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The same with those of the texts of `made_tasks` only."""
    return with_pieces_of(wordpiece_tokenizer, WORDS, tmp_path_factory.mktemp("models") / "fewest-pieces")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A saved BERT with 2 layers of 3 heads and MiniLM's tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(wordpiece_tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
    )
    BertModel(config).save_pretrained(folder)
    wordpiece_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def small_demo(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model under the name of the bundled one, for tests that are not about what it does."""
    monkeypatch.setattr("headlens.models.loading.demo_folder", lambda: tiny_bert)


@pytest.fixture(scope="session")
def tiny_marian(tmp_path_factory: pytest.TempPathFactory, marian_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A saved Marian with 2+2 layers of 2 heads."""
    folder = tmp_path_factory.mktemp("models") / "tiny-marian"
    torch.manual_seed(0)
    pad = marian_tokenizer.pad_token_id
    config = MarianConfig(
        vocab_size=len(marian_tokenizer),
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=marian_tokenizer.eos_token_id,
        forced_eos_token_id=marian_tokenizer.eos_token_id,
    )
    MarianMTModel(config).save_pretrained(folder)
    marian_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def made(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_of_made_texts: PreTrainedTokenizerBase
) -> Callable[..., str]:
    """Tiny models that can do a task, as well as chance: 2 layers of 2 heads, ALBERT's shared."""
    tokenizer = tokenizer_of_made_texts
    folder, done = tmp_path_factory.mktemp("models"), dict[str, str]()

    def make(name: str, kind: str = "Bert", task: str = "sst2") -> str:
        if name not in done:
            labels = CATALOGUE[task].task.labels or ("score",)
            names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
            model: Any = build(f"{kind}ForSequenceClassification", len(tokenizer), **names)
            texts = [f"{text(n)} {text(n, 3)}" for n in range(30)]
            with torch.no_grad():
                # so that neither class is everybody's
                model.classifier.bias -= model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.mean(0)
            done[name] = save(model, folder / name, tokenizer)
        return done[name]

    return make


@pytest.fixture
def entailment(headlens: Headlens) -> str:
    """A file of pairs in the empty folder where the program is called; beside it two development sets, m and mm."""
    for name, shift in (("train", 0), ("m", 1), ("mm", 2)):
        rows = [
            f"{n}\t{text(n)}\t{text(n, shift)}\t{CATALOGUE['mnli'].task.labels[(n + shift) % 3]}"
            for n in range(12 + shift)
        ]
        lines = ["index\tsentence1\tsentence2\tgold_label", *rows]
        Path(f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return "train.tsv"


@pytest.fixture
def sentiment(headlens: Headlens) -> tuple[str, ...]:
    """Files of sentences in the empty folder where the program is called; the options that name them."""
    Path("train.tsv").write_text(sentiment_table(), encoding="utf-8")
    Path("dev.tsv").write_text(sentiment_table(13), encoding="utf-8")
    return ("--task", "sst2", "--data", "train.tsv", "--dev-data", "dev.tsv")


@pytest.fixture(scope="module")
def places(
    forks: Forks, tiny_bert: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: Any
) -> dict[str, str]:
    """Models, data and a run, by the names they have in `CASES`."""
    data = tmp_path_factory.mktemp("data")
    (data / "train.tsv").write_text(sentiment_table(), encoding="utf-8")
    (data / "dev.tsv").write_text(sentiment_table(13), encoding="utf-8")
    labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    judge = build("BertForSequenceClassification", len(wordpiece_tokenizer), **labels)
    found = {"bert": str(tiny_bert), "data": str(data), "judge": save(judge, data / "judge", wordpiece_tokenizer)}
    switch(judge, Entmax())
    found["sparse"] = save(judge, data / "sparse", wordpiece_tokenizer)
    few = ("--limit", 5, "--quiet", "--no-figures", "--out", "measured")
    assert forks.run(data, "relevance", found["bert"], *few) == 0, (data / "stderr").read_text()
    return found | {"measured": str(data / "measured")}


@pytest.fixture(scope="module")
def command(places: dict[str, str]) -> Callable[[str], list[str]]:
    def words(case: str) -> list[str]:
        # Drawing takes longer than all the rest; what draws figures alone stands for it.
        figures = [] if case in ("masks", "report", "compact", "attend") else ["--no-figures"]
        return [*(str(a).format(**places) for a in CASES[case]), *figures, "--quiet", "--out", "run"]

    return words


@pytest.fixture
def skilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that learned for a moment guess, so that nothing that is compared with them would have a verdict."""
    monkeypatch.setattr("headlens.learning.sweep.skill_of", lambda *_: Skill(better=True))
