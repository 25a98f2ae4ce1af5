"""Fixtures that several folders share: tokenizers that need no network, pictures, and what a machine lacks."""

import json
import os
import socket
import warnings
from itertools import product
from pathlib import Path

import pytest
import torch

# What is imported and not used here are fixtures, which pytest finds by their names.
from forks import forks  # noqa: F401
from made_tables import make_ablation, make_heads, make_positions, make_pruning, make_relevance, make_syntax  # noqa: F401
from open_page import browser, new_context  # noqa: F401
from small_vocabulary import minilm
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import MarianTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headlens.plots import export, style

# Pictures of tests have fewer pixels, which are most of the time that drawing takes.
PRINTED_DPI, export.DPI = export.DPI, 40
# So is laying out, which only tests of the layout need: they ask for `laid_out`, and slow tests have it.
_PLACE_AXES, style._place_axes = style._place_axes, lambda figure: None
SUBJECTS = ["The old teacher", "A cat", "Nobody", "Zoë's friend", "My neighbour's dog", "She", "It", "The two of them"]
VERBS = ["isn't reading", "sold", "cannot see", "is gonna like", "wrote about"]
OBJECTS = ["the café (again).", "naïve stories!", "a house near the river.", "10,000 books?", "“nothing”."]
SENTENCES = [" ".join(parts) for parts in product(SUBJECTS, VERBS, OBJECTS)]
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run; slow tests look at figures as users see them."""
    missing = {
        "gpu": "" if torch.cuda.is_available() else "needs a CUDA device",
        "posix": "" if os.name == "posix" else "needs forks, signals, permissions or special files as POSIX has them",
        "shared_data": "" if (SHARED / "data").is_dir() else "needs the real data in ../shared/data",
    }
    for item in items:
        for name, reason in missing.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("slow") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "laid_out")


@pytest.fixture
def printed_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures as a user gets them."""
    monkeypatch.setattr(export, "DPI", PRINTED_DPI)


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures whose axes stand where a user sees them."""
    monkeypatch.setattr(style, "_place_axes", _PLACE_AXES)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the repository; for tests marked `shared_data`."""
    return SHARED


@pytest.fixture(scope="session")
def wordpiece_tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's: BERT's English WordPiece, lower-casing and accent-stripping."""
    return minilm()


@pytest.fixture(scope="session")
def bytebpe_tokenizer() -> PreTrainedTokenizerBase:
    """GPT-2's kind: bytes, leading spaces inside the tokens, no special token added, no padding token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end, alphabet = "<|endoftext|>", pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=[end], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end)


@pytest.fixture(scope="session")
def metaspace_tokenizer() -> PreTrainedTokenizerBase:
    """T5's kind: SentencePiece Unigram over compatibility-normalised text, `</s>` at the end."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")


@pytest.fixture(scope="session")
def marian_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """Marian's: a slow tokenizer with a SentencePiece model per side and one vocabulary; knows `>>deu<<`."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("marian")
    pieces: dict[str, None] = dict.fromkeys(["</s>", "<unk>"])
    for side, kind, size in (("source", "bpe", 150), ("target", "unigram", 90)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_prefix=str(folder / side),
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        model = folder / f"{side}.model"
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        pieces |= dict.fromkeys(processor.id_to_piece(i) for i in range(3, processor.get_piece_size()))
        model.rename(folder / f"{side}.spm")
    vocabulary = {piece: i for i, piece in enumerate([*pieces, ">>deu<<", "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")))


@pytest.fixture(params=["wordpiece", "bytebpe", "metaspace", "marian"])
def any_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    """Each of the tokenizers in turn."""
    return request.getfixturevalue(f"{request.param}_tokenizer")


@pytest.fixture
def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that asks the network, whose minute of retries nobody shall wait for."""
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, lambda *_, **__: pytest.fail("the network was asked"))
