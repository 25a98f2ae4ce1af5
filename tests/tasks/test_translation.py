"""BLEU and chrF of summed counts are sacreBLEU's of the corpus."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from saved import build, save
from transformers import PreTrainedTokenizerBase

from headlens.errors import OptionError
from headlens.models.loading import load
from headlens.models.model_options import ModelOptions
from headlens.tasks.examples import TextExample
from headlens.tasks.masked import TranslationLoss
from headlens.tasks.open_task import DataOptions, open_task
from headlens.tasks.reader import Reader
from headlens.tasks.task_options import TaskData
from headlens.tasks.translation import (
    BLEU_COLUMNS,
    CHRF_COLUMNS,
    Translation,
    bleu,
    bleu_counts,
    chrf,
    chrf_counts,
    signatures,
    tokenizer_of_language,
)

WORDS = st.lists(
    st.sampled_from(["der", "Hund", "läuft", "schnell", "nach", "Hause", ".", "1,000", "don't"]), max_size=9
)
SENTENCES = WORDS.map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6)


def sums(pairs: list[tuple[str, str]]) -> tuple[float, float]:
    words = np.array([bleu_counts(*pair) for pair in pairs]).sum(axis=0, keepdims=True)
    characters = np.array([chrf_counts(*pair) for pair in pairs]).sum(axis=0, keepdims=True)
    assert words.shape == (1, len(BLEU_COLUMNS))
    assert characters.shape == (1, len(CHRF_COLUMNS))
    return float(bleu(words)[0]), float(chrf(characters)[0])


@given(PAIRS)
def test_against_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    written, references = [p[0] for p in pairs], [[p[1] for p in pairs]]
    expected = BLEU().corpus_score(written, references).score, CHRF().corpus_score(written, references).score
    assert sums(pairs) == pytest.approx(expected, abs=1e-9)


def test_known_values() -> None:
    assert sums([("the cat sat on the mat .", "the cat sat on the mat .")]) == pytest.approx((100, 100))
    assert sums([("", "a cat")]) == (0, 0)
    assert sums([("a b c d e", "v w x y z")])[0] == 0


def test_other_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bleu_counts("猫坐着", "猫坐着", "char")[0] == 3
    assert bleu_counts("猫坐着", "猫坐着", "13a")[0] == 1
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(
        OptionError, match=r"--data-args bleu-tokenizer flores200: there is no .*\nFetch it once: python -c"
    ):
        bleu_counts("a", "a", "flores200")
    with pytest.raises(OptionError, match=r"sacreBLEU has no tokenizer 'moses'\.\nIt has none, zh, 13a"):
        bleu_counts("a", "a", "moses")


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "intl", "char", "none"])
def test_signatures_are_sacrebleus(tokenizer: str) -> None:
    metrics = BLEU(tokenize=tokenizer), CHRF()
    for metric in metrics:
        metric.corpus_score(["a"], [["a"]])
    assert signatures(tokenizer) == f"bleu {metrics[0].get_signature()}, chrf {metrics[1].get_signature()}"
    assert f"|tok:{tokenizer}|" in signatures(tokenizer)


@pytest.mark.parametrize("tokenizer", ["ja-mecab", "ko-mecab"])
def test_a_tokenizer_whose_package_is_not_installed(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"sacrebleu.tokenizers.tokenizer_{tokenizer.replace('-', '_')}"
    monkeypatch.setattr(f"{module}.MeCab", None)
    told = (
        rf"BLEU's tokenizer {tokenizer} needs .* not installed.\nInstall it: pip install 'sacrebleu\[{tokenizer[:2]}\]'"
    )
    with pytest.raises(OptionError, match=told):
        bleu_counts("a", "a", tokenizer)


@pytest.mark.parametrize(
    ("codes", "tokenizer"),
    [
        ("zh zh_CN zho_Hans zh-TW cmn_Hant yue_Hant", "zh"),
        ("ja ja_XX jpn_Jpan jap JA", "ja-mecab"),
        ("ko ko_KR kor_Hang", "ko-mecab"),
        ("de en_XX eng_Latn jav_Latn zha target 2", None),
    ],
)
def test_tokenizers_by_language(codes: str, tokenizer: str | None) -> None:
    for code in codes.split():
        assert tokenizer_of_language(code) == tokenizer
        for said in ({"target_lang": code}, {"tgt_lang": code, "target_lang": None}):
            reader = Reader(SimpleNamespace(**said))  # type: ignore[arg-type]
            assert Translation().bleu_tokenizer(reader) == (tokenizer or "13a")
            assert Translation(tokenizer="char").bleu_tokenizer(reader) == "char"
    assert Translation().bleu_tokenizer(Reader(SimpleNamespace())) == "13a"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "tokenizer"),
    [
        ({"columns": {"target": "translation.zh"}}, "zh"),
        ({"columns": {"target": "ko"}}, "ko-mecab"),
        ({"columns": {"target": "translation.zh"}, "bleu_tokenizer": "char"}, "char"),
        ({"target": "a.b.ja.gz"}, "ja-mecab"),
        ({"columns": {"target": "german"}}, None),
        ({}, None),
    ],
)
def test_tokenizers_by_column_or_file(tmp_path: Path, given: dict[str, Any], tokenizer: str | None) -> None:
    source = tmp_path / ("a.txt" if "target" in given else "a.tsv")
    source.write_text("a\tb\n", encoding="utf-8")
    task, _ = open_task("translation", source, DataOptions(**given))
    assert isinstance(task, Translation)
    assert task.tokenizer == tokenizer


def test_a_language_that_is_asked_for(marian_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = build("MarianMTModel", len(marian_tokenizer), pad_token_id=0, decoder_start_token_id=0)
    name = save(model, tmp_path / "m", marian_tokenizer)
    languages = [load(name, ModelOptions(target_language=code)) for code in (None, "deu")]
    assert [Reader.of(one).target_language for one in languages] == ["", "deu"]


@pytest.mark.parametrize("task", ["sst2", "mlm", "translation-loss"])
def test_a_tokenizer_for_a_task_without_bleu(task: str) -> None:
    with pytest.raises(OptionError, match=rf"--data-args bleu-tokenizer is not for --task {task}.\nIt goes with"):
        TaskData(task, bleu_tokenizer="zh")


REFERENCES = {
    "zh": "我今天去学校，你呢？",
    "ja-mecab": "今日は学校に行きます。",
    "ko-mecab": "오늘 학교에 갑니다.",
    "flores200": "วันนี้ฉันไปโรงเรียน",
}


@pytest.mark.parametrize("tokenizer", REFERENCES)
def test_references_without_words_are_not_counted_in_words(
    tokenizer: Any, marian_tokenizer: PreTrainedTokenizerBase
) -> None:
    """13a makes one word of a sentence in Chinese, of which no two are the same: BLEU of nearly nothing."""
    reader, pair = Reader(marian_tokenizer, decoder_start_id=0), ("She goes to school", REFERENCES[tokenizer])
    example = TextExample("1", pair)
    with pytest.raises(OptionError, match="does not separate words by spaces") as caught:
        Translation().prepare(example, reader)
    assert f"--data-args bleu-tokenizer={tokenizer}, " in caught.value.advice
    for own in (Translation(tokenizer="13a"), Translation(tokenizer="char"), Translation(tokenizer=tokenizer)):
        assert own.prepare(example, reader) == TranslationLoss().prepare(example, reader)
    for text in ("Sie geht heute in die 学校.", "1, 2, 3", "Она идёт в школу", "היא הולכת"):
        Translation().prepare(TextExample("1", ("She goes to school", text)), reader)
