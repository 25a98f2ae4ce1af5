"""A checkpoint's tokenizer.json against the package tokenizers, whatever class transformers makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from saved import build, save
from tiers import rest_slow
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from headlens.models.loading import LoadedModel, load

TEXTS = ("Café The 1999 a1b2", "the  cat's x-ray abc", "SS ß ﬁne 東京 ab\tba", "b, c. <new> d")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZé0123456789,.'-ß東京"
NAMED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENDS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
Change = Callable[[Tokenizer], None]


def pieces(*more: str) -> dict[str, int]:
    words = [*NAMED, *LETTERS, *(f"##{letter}" for letter in LETTERS), *more]
    return {piece: number for number, piece in enumerate(dict.fromkeys(words))}


def bert(prefix: str = "##", *more: str) -> Tokenizer:
    """BERT's usual tokenizer, of letters."""
    words = {piece.replace("##", prefix): number for piece, number in pieces(*more).items()}
    made = Tokenizer(models.WordPiece(words, unk_token="[UNK]", continuing_subword_prefix=prefix))
    made.add_special_tokens(NAMED)
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    template = "[CLS]:0 $A:0 [SEP]:0"
    named = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(template, f"{template} $B:1 [SEP]:1", named)
    return made


def gpt2(**model: Any) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: number for number, token in enumerate(["<end>", *letters, "ab", "Ġc"])}
    made = Tokenizer(models.BPE(words, [("a", "b"), ("Ġ", "c")], **model))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<end>"])
    return made


def part(name: str, value: Any) -> Change:
    return lambda tokenizer: setattr(tokenizer, name, value)


def saved(folder: Path, file: Tokenizer, kind: str, **settings: Any) -> LoadedModel:
    model = build("GPT2Model" if "GPT2" in kind else "RobertaModel" if "Roberta" in kind else "BertModel", 300)
    place = Path(save(model, folder))
    file.save(str(place / "tokenizer.json"))
    ends = {"eos_token": "<end>", "unk_token": "<end>", "bos_token": "<end>"} if "GPT2" in kind else ENDS
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **ends, **settings}))
    return load(str(place))


def check(loaded: LoadedModel, file: Tokenizer) -> None:
    """That texts, and pairs of them with their segments, are those of the file."""
    made: Any = loaded.tokenizer
    assert [made(text)["input_ids"] for text in TEXTS] == [file.encode(text).ids for text in TEXTS]
    pair, expected = made(TEXTS[0], TEXTS[1], return_token_type_ids=True), file.encode(TEXTS[0], TEXTS[1])
    assert (pair["input_ids"], pair["token_type_ids"]) == (expected.ids, expected.type_ids)


DIGITS = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)])
NO_END = processors.TemplateProcessing("[CLS] $A", "[CLS] $A $B", [("[CLS]", 2)])
REPLACED = normalizers.Sequence([normalizers.Replace("ß", "ss"), normalizers.BertNormalizer(lowercase=False)])


@pytest.mark.parametrize("kind", rest_slow(["BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer"]))
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (part("pre_tokenizer", DIGITS), "pre_tokenizer"),
        (part("pre_tokenizer", pre_tokenizers.WhitespaceSplit()), "pre_tokenizer"),
        (part("post_processor", NO_END), "post_processor"),
        (part("normalizer", REPLACED), "normalizer"),
        (part("normalizer", normalizers.Strip()), "normalizer"),
        (part("normalizer", normalizers.BertNormalizer(strip_accents=True, lowercase=False)), "normalizer"),
        (lambda tokenizer: tokenizer.add_tokens(["<new>"]), None),
    ],
)
def test_parts_of_a_word_piece_file(tmp_path: Path, change: Change, said: str | None, kind: str) -> None:
    file = bert()
    change(file)
    loaded = saved(tmp_path / "m", file, kind, do_lower_case=False)
    check(loaded, file)
    if said is not None:
        assert any(f"would use another {said}." in note for note in loaded.notes)


@pytest.mark.parametrize(
    "file",
    [
        bert("@@"),
        Tokenizer(models.WordLevel({**pieces("the", "cat"), "zz": 200}, unk_token="[UNK]")),
        Tokenizer(models.WordLevel(dict(reversed(pieces().items())), unk_token="[UNK]")),
    ],
)
def test_models_of_another_kind(tmp_path: Path, file: Tokenizer) -> None:
    loaded = saved(tmp_path / "m", file, "BertTokenizer")
    check(loaded, file)
    loaded.tokenizer.save_pretrained(tmp_path / "again")  # type: ignore[union-attr]
    again = Tokenizer.from_file(str(tmp_path / "again" / "tokenizer.json"))
    assert [again.encode(text).ids for text in TEXTS] == [file.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("length", [100, 3])
def test_the_longest_word(tmp_path: Path, length: int) -> None:
    file = bert()
    file.model.max_input_chars_per_word = length  # type: ignore[attr-defined]
    check(saved(tmp_path / "m", file, "BertTokenizer"), file)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (part("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel()])), ""),
        (part("normalizer", normalizers.Lowercase()), ""),
        (part("post_processor", processors.TemplateProcessing("$A <end>", "$A $B <end>", [("<end>", 0)])), ""),
        (part("post_processor", processors.TemplateProcessing("$A", "$A $B", [])), "RobertaTokenizer"),
        (part("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)), "RobertaTokenizer"),
    ],
)
def test_parts_of_a_byte_level_file(tmp_path: Path, change: Change, kind: str) -> None:
    file = gpt2()
    if kind:
        file.add_special_tokens(NAMED)
    change(file)
    check(saved(tmp_path / "m", file, kind or "GPT2Tokenizer"), file)


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@pytest.mark.parametrize("length", [3, 16])
def test_lengths_that_somebody_saved_cut_nothing(tmp_path: Path, strategy: str, length: int) -> None:
    """Fast tokenizers write the length and the padding of their last call into the file."""
    file = bert()
    file.enable_truncation(length, strategy=strategy)
    file.enable_padding(length=32)
    loaded = saved(tmp_path, file, "BertTokenizerFast")
    file.no_truncation()
    file.no_padding()
    check(loaded, file)


def test_random_cuts_are_not_made(tmp_path: Path) -> None:
    loaded = saved(tmp_path / "m", gpt2(dropout=1.0), "PreTrainedTokenizerFast")
    check(loaded, gpt2())
    assert any("cuts words at random (dropout 1)" in note for note in loaded.notes)


@pytest.mark.parametrize("lower", [True, False, None])
@pytest.mark.parametrize("in_file", [True, False])
def test_lower_case_of_the_configuration_goes_first(tmp_path: Path, lower: bool | None, in_file: bool) -> None:
    file = bert()
    file.normalizer = normalizers.BertNormalizer(lowercase=in_file)
    loaded = saved(tmp_path / "m", file, "BertTokenizer", **({} if lower is None else {"do_lower_case": lower}))
    file.normalizer = normalizers.BertNormalizer(lowercase=in_file if lower is None else lower)
    check(loaded, file)


@pytest.mark.parametrize("space", [True, False])
def test_a_space_before_the_text(tmp_path: Path, space: bool) -> None:
    file = gpt2()
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not space)
    loaded = saved(tmp_path / "m", file, "GPT2Tokenizer", add_prefix_space=space)
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    check(loaded, file)


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "RobertaTokenizer", "GPT2Tokenizer"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_template_goes_before_settings_of_ends(tmp_path: Path, kind: str, asked: bool) -> None:
    """transformers 5 leaves these settings out where there is a tokenizer.json."""
    file = gpt2()
    file.add_special_tokens(NAMED)
    if not asked:
        file.post_processor = processors.TemplateProcessing("<end> $A", "<end> $A $B", [("<end>", 0)])
    check(saved(tmp_path / "m", file, kind, add_bos_token=asked), file)


@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_the_usual_file_is_told_of_nowhere(tmp_path: Path, kind: str) -> None:
    loaded = saved(tmp_path / "m", bert(), kind, do_lower_case=False)
    check(loaded, bert())
    assert not any("tokenizer.json" in note for note in loaded.notes)


@pytest.mark.parametrize(
    "kind",
    ["BertTokenizer", "RobertaTokenizer", "GPT2Tokenizer", "T5Tokenizer", "XLMRobertaTokenizer", "LlamaTokenizer"],
)
def test_what_transformers_saves_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    made = getattr(transformers, kind)()
    made.add_tokens([*"abcd", "ca"])
    loaded = load(save(build("BertModel", len(made)), tmp_path / "m", made))
    assert loaded.tokenizer is not None
    assert [loaded.tokenizer(text)["input_ids"] for text in TEXTS] == [made(text)["input_ids"] for text in TEXTS]
    assert not any("tokenizer.json" in note for note in loaded.notes)
