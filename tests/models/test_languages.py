"""Models that have to be told their languages, against the tokenizers and models of transformers that are told them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from made_translators import MODELS, SOURCE, TARGET, saved_translator
from saved import PAIR, SMALL, build, save, sentence
from tiers import rest_slow, rest_slow_rows
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

from headlens.corpora.alignment import UNALIGNED
from headlens.corpora.sentence import Example
from headlens.errors import ModelError, OptionError
from headlens.languages import language_tokens
from headlens.models.loading import LoadedModel, load, tokenizer_of
from headlens.models.model_options import ModelOptions
from headlens.runs.corpus_pass import CorpusReader
from headlens.runs.run import model_record
from headlens.tasks.reader import Reader

# A tokenizer of each family; test_what_models_read_is_what_transformers_makes_of_it tries all.
FAST = ["m2m100", "mbart"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: saved_translator(name, tmp_path_factory.mktemp(name)) for name in MODELS}


def told(folder: str, source: str | None, target: str | None) -> LoadedModel:
    return load(folder, ModelOptions(source_language=source, target_language=target))


@pytest.mark.parametrize("name", MODELS)
def test_what_models_read_is_what_transformers_makes_of_it(folders: dict[str, str], name: str) -> None:
    _, source, target, _ = MODELS[name]
    own = AutoTokenizer.from_pretrained(folders[name], src_lang=source, tgt_lang=target)
    expected = own(SOURCE, text_target=TARGET, return_tensors="pt")
    loaded = told(folders[name], source, target)
    reader = Reader.of(loaded, ())
    sources = reader.sequence(SOURCE)
    assert sources is not None
    assert list(sources.ids) == expected["input_ids"][0].tolist()
    assert own.convert_tokens_to_ids(own.tokenize("a"))[0] != own.unk_token_id
    assert list(reader.target(TARGET)) == expected["labels"][0].tolist()
    model: Any = loaded.model
    if name.startswith("mbart"):
        shifted = model.prepare_decoder_input_ids_from_labels(labels=expected["labels"])[0]
    else:
        shifted = shift_tokens_right(expected["labels"], 1, 2)[0]
    # NLLB's legacy order has the language last, which no decoder reads.
    assert name == "nllb-legacy" or language_tokens(own)[target] in shifted.tolist()[:2]
    corpus_reader = CorpusReader.of(loaded, Example(sentence(SOURCE), sentence(TARGET)))
    encoded = corpus_reader.encoder.encode(Example(sentence(SOURCE), sentence(TARGET)))
    assert encoded is not None
    assert encoded.target is not None
    assert list(encoded.source.ids) == expected["input_ids"][0].tolist()
    assert list(encoded.target.ids) == shifted.tolist()
    assert reader.decoder_start_id == shifted[0]


@pytest.mark.parametrize("name", rest_slow(MODELS, FAST))
def test_translations_begin_with_their_language(folders: dict[str, str], name: str) -> None:
    _, source, target, _ = MODELS[name]
    loaded = told(folders[name], source, target)
    tokenizer = tokenizer_of(loaded)
    model: Any = loaded.model
    inputs = tokenizer(SOURCE, return_tensors="pt")
    code = language_tokens(tokenizer)[target]
    # As the documentation of transformers has it: mBART of 25 languages starts there, the others are forced to.
    plain: Any = getattr(transformers, type(model).__name__).from_pretrained(folders[name])
    how = {"decoder_start_token_id": code} if name == "mbart" else {"forced_bos_token_id": code}
    for more in ({"num_beams": 1}, {"num_beams": 4}):
        written = model.generate(**inputs, max_new_tokens=6, do_sample=False, **more)
        assert written[0, 0 if name == "mbart" else 1] == code
        assert torch.equal(written, plain.generate(**inputs, max_new_tokens=6, do_sample=False, **more, **how))


@pytest.mark.parametrize("name", rest_slow(MODELS, FAST))
def test_languages_that_are_needed_are_asked_for(folders: dict[str, str], name: str) -> None:
    _, source, target, _ = MODELS[name]
    for given, asked in (((None, target), "source"), ((source, None), "target")):
        loaded = told(folders[name], *given)
        with pytest.raises(ModelError) as caught:
            Reader.of(loaded, ())
        assert caught.value.message.endswith(
            f"needs to know the language of its {asked}: --model-args {asked}-language=CODE."
        )
        assert f" {target}," in caught.value.advice
        assert f" {source}," in caught.value.advice
    # The encoder reads no target.
    assert CorpusReader.of(told(folders[name], source, None), Example(sentence(SOURCE))).encoder_alone


@pytest.mark.parametrize("name", rest_slow(MODELS, FAST))
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_language_that_is_none(folders: dict[str, str], name: str, side: str) -> None:
    with pytest.raises(
        OptionError, match=rf"--model-args {side}-language xyz: .* has no such language.\nLanguages: "
    ) as caught:
        told(folders[name], *(("xyz", None) if side == "source" else (None, "xyz")))
    assert MODELS[name][2] in caught.value.advice


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_languages_are_special(folders: dict[str, str], name: str) -> None:
    """So that they are no word, of whatever side."""
    _, source, target, _ = MODELS[name]
    loaded = told(folders[name], source, target)
    example = Example(sentence(SOURCE), sentence(TARGET))
    encoded = CorpusReader.of(loaded, example).encoder.encode(example)
    assert encoded is not None
    assert encoded.target is not None
    codes = set(language_tokens(tokenizer_of(loaded)).values())
    for side in [encoded.source] if name == "nllb-legacy" else [encoded.source, encoded.target]:
        places = [place for place, number in enumerate(side.ids) if number in codes]
        assert places
        assert all(side.kinds[place] for place in places)
        assert all(side.alignment.unit_of_token[place] == UNALIGNED for place in places)


@pytest.mark.parametrize("name", rest_slow(MODELS, FAST))
def test_a_model_that_was_saved_states_its_languages(folders: dict[str, str], name: str, tmp_path: Path) -> None:
    _, source, target, _ = MODELS[name]
    loaded = told(folders[name], source, target)
    again = load(save(loaded.model, tmp_path / "again", loaded.tokenizer))
    assert not again.unknown_languages
    one, two = (Reader.of(found, ()) for found in (loaded, again))
    assert one.sequence(SOURCE) == two.sequence(SOURCE)
    assert one.target(TARGET) == two.target(TARGET)
    assert one.decoder_start_id == two.decoder_start_id


@pytest.mark.parametrize("name", rest_slow(MODELS, FAST))
def test_given_languages_go_before_stated_ones(folders: dict[str, str], name: str, tmp_path: Path) -> None:
    _, source, target, _ = MODELS[name]
    first = told(folders[name], source, target)
    turned = told(save(first.model, tmp_path / "again", first.tokenizer), target, source)
    own = AutoTokenizer.from_pretrained(folders[name], src_lang=target, tgt_lang=source)
    expected = own(TARGET, text_target=SOURCE)
    reader = Reader.of(turned, ())
    found = reader.sequence(TARGET)
    assert found is not None
    assert list(found.ids) == expected["input_ids"]
    assert list(reader.target(SOURCE)) == expected["labels"]


def test_a_language_without_an_embedding_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    """M2M100 counts its languages behind its vocabulary, which knows nothing of them."""
    loaded = told(folders["m2m100"], "fr", "de")
    tokenizer, model = loaded.tokenizer, loaded.model
    assert tokenizer is not None
    last = max(language_tokens(tokenizer).values())
    model.resize_token_embeddings(last - 1)
    again = told(save(model, tmp_path / "small", tokenizer), "fr", "de")
    with pytest.raises(ModelError, match=rf"the model embeddings for {last - 1}\. It cannot read .*, "):
        tokenizer_of(again)


# --- Marian, which is told in the text

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.fixture
def marian(tmp_path: Path, marian_tokenizer: PreTrainedTokenizerBase) -> Callable[..., LoadedModel]:
    """Loads a Marian whose vocabulary has these codes."""

    def make(*codes: str, source: str | None = None, target: str | None = None) -> LoadedModel:
        marian_tokenizer.save_pretrained(tmp_path / "model")
        path = tmp_path / "model" / "vocab.json"
        plain = [token for token in json.loads(path.read_text(encoding="utf-8")) if not token.startswith(">>")]
        path.write_text(json.dumps({t: i for i, t in enumerate([*plain, *(f">>{c}<<" for c in codes)])}))
        pad = plain.index("<pad>")
        settings = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
        folder = save(build("MarianMTModel", len(plain) + len(codes), **settings), tmp_path / "model")
        return told(folder, source, target)

    return make


def test_marian_is_told_its_target(marian: Callable[..., LoadedModel]) -> None:
    codes = ("deu", "fra", "por_BR")
    for code in codes:
        loaded = marian(*codes, target=code)
        own: Any = AutoTokenizer.from_pretrained(loaded.name)
        expected = own(f">>{code}<< She sold nothing")["input_ids"]
        reader = Reader.of(loaded, ())
        for text in ("She sold nothing", f">>{code}<< She sold nothing"):
            found = reader.sequence(text)
            assert found is not None
            assert list(found.ids) == expected
        assert list(reader.target("She sold nothing")) == own(text_target="She sold nothing")["input_ids"]


def test_marian_asks_for_its_target(marian: Callable[..., LoadedModel]) -> None:
    loaded = marian("deu", "fra")
    reader = Reader.of(loaded, ())
    with pytest.raises(
        ModelError, match=r"needs to know the target language.*--model-args target-language.*\nLanguages: deu, fra\."
    ) as caught:
        reader.sequence("She sold nothing")
    assert "begin every source with its code" in caught.value.message
    assert reader.sequence(">>fra<< She sold nothing") is not None
    assert reader.target("She sold nothing")


@pytest.mark.parametrize("codes", [(), ("deu",)])
def test_marian_of_one_language_need_not_be_told(marian: Callable[..., LoadedModel], codes: tuple[str, ...]) -> None:
    loaded = marian(*codes)
    own: Any = AutoTokenizer.from_pretrained(loaded.name)
    found = Reader.of(loaded, ()).sequence("She sold nothing")
    assert found is not None
    assert list(found.ids) == own("She sold nothing")["input_ids"]


def test_marian_is_not_told_its_source(marian: Callable[..., LoadedModel]) -> None:
    with pytest.raises(
        OptionError, match=r"--model-args source-language deu: .* does not take a language for its source"
    ):
        marian("deu", "fra", source="deu")
    with pytest.raises(
        OptionError, match=r"--model-args target-language ita: .* has no such language.\nLanguages: deu, fra"
    ):
        marian("deu", "fra", target="ita")


@pytest.mark.parametrize("side", ["source_language", "target_language"])
def test_models_without_languages_take_none(tmp_path: Path, side: str) -> None:
    folder = save(build("BertModel"), tmp_path / "model")
    with pytest.raises(OptionError, match="does not take a language for its"):
        load(folder, ModelOptions(**{side: "de"}))  # type: ignore[arg-type]


def test_what_marian_was_told_is_saved_and_told(marian: Callable[..., LoadedModel], tmp_path: Path) -> None:
    """As `train` saves it, so that a trained model goes on in its language."""
    loaded = marian("deu", "fra", target="fra")
    assert model_record(loaded, "m")["languages"] == {"target": "fra"}
    assert not any("language" in note for note in loaded.notes)
    again = told(save(loaded.model, tmp_path / "trained", loaded.tokenizer), None, None)
    assert (
        "The target language is fra, according to the model's files; --model-args target-language changes it."
        in again.notes
    )
    ids = [Reader.of(own, ()).sequence("She sold nothing") for own in (loaded, again)]
    assert ids[0] == ids[1]
    assert model_record(again, "m")["languages"] == {"target": "fra"}
    other = told(again.name, None, "deu")
    assert Reader.of(other, ()).sequence("She sold nothing") != ids[0]


# --- X-MOD, which has adapters for languages


XMOD = [("XmodModel", "en_XX"), ("XmodForSequenceClassification", "de_DE"), ("XmodForMaskedLM", "fr_XX")]


@pytest.mark.parametrize(("kind", "code"), rest_slow_rows(XMOD, XMOD[2:]))
def test_xmod_reads_with_the_adapters_of_its_language(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, kind: str, code: str
) -> None:
    languages = ["en_XX", "de_DE", "fr_XX"]
    model: Any = build(kind, len(wordpiece_tokenizer), languages=languages, default_language=None)
    folder = save(model, tmp_path / "xmod", wordpiece_tokenizer)
    with pytest.raises(ModelError) as caught:
        tokenizer_of(load(folder))
    assert "xmod needs to know the language of its source: --model-args source-language=CODE." in caught.value.message
    assert caught.value.advice == "Languages: de_DE, en_XX, fr_XX."
    with pytest.raises(OptionError, match=r"no such language.\nLanguages: de_DE, en_XX, fr_XX\."):
        told(folder, "de", None)
    with pytest.raises(OptionError, match="does not take a language for its target"):
        told(folder, "de_DE", "en_XX")
    loaded = told(folder, code, None)
    ids = tokenizer_of(loaded)("She sold nothing", return_tensors="pt")["input_ids"]
    own: Any = loaded.model
    found = own(input_ids=ids)[0]
    expected = model(input_ids=ids, lang_ids=torch.tensor([languages.index(code)]))[0]
    torch.testing.assert_close(found, expected)
    assert model_record(loaded, "m")["languages"] == {"source": code}
    # A config.json that names the language is followed, and it is told.
    again = load(save(own, tmp_path / "again", wordpiece_tokenizer))
    torch.testing.assert_close(again.model(input_ids=ids)[0], expected)
    assert again.notes == (
        f"The source language is {code}, according to the model's files; --model-args source-language changes it.",
    )


# --- Languages that nothing but the text names


@pytest.mark.parametrize(
    ("tokens", "told"), [(["<2de>", "<2fr>", "<2zh_Hant>"], True), (["<2de>"], False), ([], False)]
)
def test_tokens_of_languages_in_the_text_are_told(
    tmp_path: Path, metaspace_tokenizer: PreTrainedTokenizerBase, tokens: list[str], *, told: bool
) -> None:
    tokenizer = copy.deepcopy(metaspace_tokenizer)
    tokenizer.add_tokens(tokens)
    notes = load(save(build("T5ForConditionalGeneration", len(tokenizer)), tmp_path / "t5", tokenizer)).notes
    assert any(f"tokens that name languages ({', '.join(tokens)} …)" in note for note in notes) == (len(tokens) > 1)


# --- Models that read no text


@pytest.mark.parametrize(
    ("kind", "settings", "read"),
    [
        ("WhisperForConditionalGeneration", {"num_mel_bins": 8, "max_source_positions": 6}, "sound"),
        ("ViTModel", {"image_size": 8, "patch_size": 4}, "images"),
        (
            "Wav2Vec2Model",
            {"conv_dim": (8,), "conv_stride": (2,), "conv_kernel": (2,), "num_feat_extract_layers": 1},
            "sound",
        ),
    ],
)
def test_a_tokenizer_beside_a_model_of_something_else(
    wordpiece_tokenizer: PreTrainedTokenizerBase, kind: str, settings: dict[str, Any], read: str
) -> None:
    sizes = {
        **SMALL,
        **PAIR,
        "num_feat_extract_layers": 1,
        "num_conv_pos_embedding_groups": 2,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
    }
    cls = getattr(transformers, kind)
    loaded = LoadedModel("tiny", cls(cls.config_class(**sizes | settings)), wordpiece_tokenizer, None)
    with pytest.raises(ModelError, match=rf"tiny reads {read}, not text\."):
        CorpusReader.of(loaded, Example(sentence(SOURCE)))
