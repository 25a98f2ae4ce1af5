"""Models with random weights, and vocabularies of their own, learned from the text they are to be trained on.

Models have a name such as `new:bert-small`, or that of their shape: `new:marian-3x8x128`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError
from headlens.learning.training_options import TextTask

PREFIX = "new:"
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_NO_DROPOUT_GPT2 = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_SHAPE = re.compile(r"(?P<family>bert|albert|gpt2|llama|marian)-(?P<layers>\d+)x(?P<heads>\d+)x(?P<width>\d+)")
# Layers, heads and width by name; inner layers are four times as wide.
_ENCODERS = {"tiny": (2, 2, 128), "small": (6, 8, 256), "base": (12, 12, 768)}
_MASKED = {f"{family}-{size}": shape for family in ("bert", "albert") for size, shape in _ENCODERS.items()}
_CAUSAL = {f"{family}-{size}": shape for family in ("gpt2", "llama") for size, shape in _ENCODERS.items()}
# Vaswani et al. 2017 and Voita et al. 2019 have the base model.
_TRANSLATORS = {"marian-tiny": (2, 2, 128), "marian-small": (3, 8, 256), "marian-base": (6, 8, 512)}
_KNOWN: dict[TextTask, dict[str, tuple[int, int, int]]] = {
    "mlm": _MASKED,
    "causal-lm": _CAUSAL,
    "translation": _TRANSLATORS,
}
_MARIAN = {"forced_eos_token_id": None, "scale_embedding": True, "activation_function": "relu"}
# Of each family the configuration with what all of its models have in common, and their class.
_CLASSES: dict[str, tuple[type, dict[str, Any], type[PreTrainedModel]]] = {
    "bert": (transformers.BertConfig, _NO_DROPOUT, transformers.BertForMaskedLM),
    "albert": (transformers.AlbertConfig, _NO_DROPOUT, transformers.AlbertForMaskedLM),
    "gpt2": (transformers.GPT2Config, _NO_DROPOUT_GPT2, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, {}, transformers.LlamaForCausalLM),
    "marian": (transformers.MarianConfig, _MARIAN, transformers.MarianMTModel),
}
# Of families that have such a model the one that has a head for next sentences, too.
_WITH_NEXT: dict[str, type[PreTrainedModel]] = {
    "bert": transformers.BertForPreTraining,
    "albert": transformers.AlbertForPreTraining,
}
_FILES = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
_END = "<|endoftext|>"
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


@contextmanager
def hints_at_new(name: str) -> Iterator[None]:
    """Adds to the error that there is no such model how a new one of that name is written, if there can be one."""
    try:
        yield
    except ModelError as error:
        with suppress(OptionError):
            if not Path(name).exists():
                _shape_of(name, {**_MASKED, **_CAUSAL, **_TRANSLATORS})
                error.add_note(f"A new model with random weights is {PREFIX}{name}.")
        raise


def _shape_of(name: str, known: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """Layers, heads and width of a model by its name: one of those that are known, or by shape: `marian-3x8x128`.

    Raises:
        OptionError: if there is no such model.
    """
    families = dict.fromkeys(n.split("-")[0] for n in known)
    if name in known:
        return known[name]
    if match := _SHAPE.fullmatch(name):
        family, (layers, heads, width) = match["family"], map(int, match.group("layers", "heads", "width"))
        # Halves of a width, or of a head, turn positions into angles.
        odd = (family == "marian" and width % 2) or (family == "llama" and heads and width // heads % 2)
        if not (layers and heads and width) or width % heads or odd:
            raise OptionError(
                f"{PREFIX}{name}: {layers} layers of {heads} heads, {width} wide, do not make a valid model.",
                "LAYERSxHEADSxWIDTH: WIDTH must be a multiple of HEADS, of twice HEADS for llama, and even for marian; "
                "none of them may be 0.",
            )
        if family in families:
            return layers, heads, width
    by_shape = " or ".join(f"{PREFIX}{family}-LAYERSxHEADSxWIDTH" for family in families)
    raise OptionError(
        f"{PREFIX}{name} is not a known model.", f"New models: {', '.join(PREFIX + n for n in known)}; or {by_shape}."
    )


def new_model(
    name: str, task: TextTask, tokenizer: PreTrainedTokenizerBase, longest: int, seed: int, *, halves: bool = False
) -> PreTrainedModel:
    """A model with random weights for a task of text.

    Encoders and decoders have no dropout, as Lan et al. 2020 recommend for pre-training; translation models are those
    of Marian, with one embedding for source, target and output.

    Args:
        name: `bert-small`, `gpt2-tiny` and the like; without `new:`.
        task: what it is to learn.
        tokenizer: its vocabulary.
        longest: tokens that it reads.
        seed: of the weights.
        halves: whether an encoder has a head for next sentences, too.

    Raises:
        OptionError: if there is no such model for this task.
    """
    if task == "mlm":
        ids = {"bos": tokenizer.cls_token_id, "eos": tokenizer.sep_token_id, "pad": tokenizer.pad_token_id}
    elif task == "causal-lm":
        ids = dict.fromkeys(("bos", "eos", "pad"), tokenizer.bos_token_id)
    else:
        ids = {"pad": tokenizer.pad_token_id, "eos": tokenizer.eos_token_id, "decoder_start": tokenizer.pad_token_id}
    named = {f"{token}_token_id": number for token, number in ids.items()}
    config = _config(name, _KNOWN[task], len(tokenizer), longest, **named)
    usual = _CLASSES[config.model_type][2]
    torch.manual_seed(seed)
    return (_WITH_NEXT.get(config.model_type, usual) if halves else usual)(config)


def shape_of(name: str, vocabulary: int, longest: int) -> PreTrainedConfig:
    """The configuration of a new model of either kind, before there is a tokenizer.

    Args:
        name: without `new:`.
        vocabulary: its pieces.
        longest: tokens that it reads.

    Raises:
        OptionError: if there is no such model.
    """
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0} if name.startswith("marian") else {}
    return _config(name, _MASKED | _CAUSAL | _TRANSLATORS, vocabulary, longest, **ids)


def _config(
    name: str, known: Mapping[str, tuple[int, int, int]], vocabulary: int, longest: int, **ids: int | None
) -> PreTrainedConfig:
    layers, heads, width = _shape_of(name, known)
    family = name.split("-", maxsplit=1)[0]
    kind, settings, _ = _CLASSES[family]
    if family == "marian":
        of_side = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
        sizes = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in of_side.items()}
        sizes["d_model"] = width
    else:
        sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
        # GPT-2 has names of its own for these, which its configuration maps, but for the inner layers.
        sizes["n_inner" if family == "gpt2" else "intermediate_size"] = 4 * width
    if family == "albert":
        sizes["embedding_size"] = 64 if name == "albert-tiny" else 128
    config: PreTrainedConfig = kind(vocab_size=vocabulary, max_position_embeddings=longest, **sizes, **settings, **ids)
    return config


def is_new(name: str) -> bool:
    """Whether a name asks for a model with random weights, such as `new:bert-small`."""
    return name.startswith(PREFIX)


def wordpiece_tokenizer(texts: Iterable[str], size: int, longest: int = 512) -> PreTrainedTokenizerBase:
    """A lower-casing WordPiece vocabulary as BERT has it.

    Args:
        texts: read once.
        size: pieces, the five special ones included; small texts may yield fewer.
        longest: tokens that the model reads.

    Raises:
        OptionError: if `size` leaves no room for letters.
    """
    _check(size)
    normalise, cut = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    # How often each word occurs, as BERT cuts and lower-cases text.
    counts = Counter(word for text in texts for word, _ in cut.pre_tokenize_str(normalise.normalize_str(text)))
    letters = sorted({letter for word in counts for letter in word})
    # The trainer numbers letters inside words in random order, and ties between merges follow these numbers; what is
    # called special it numbers as asked for.
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    draft = Tokenizer(models.WordPiece(unk_token=_BERT["unk"]))
    draft.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fixed = [*special, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=max(size, len(fixed)), special_tokens=fixed, show_progress=False)
    draft.train_from_iterator((" ".join([word] * n) for word, n in sorted(counts.items())), trainer)
    tokenizer = Tokenizer(models.WordPiece(draft.get_vocab(), unk_token=_BERT["unk"]))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalise, cut
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in _BERT.items()},
    )


def byte_tokenizer(texts: Iterable[str], size: int, longest: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE vocabulary as GPT-2 has it, whose token for the end of texts stands before each of them, too.

    Args:
        texts: read once.
        size: pieces, the 256 bytes and that token included; small texts may yield fewer.
        longest: tokens that the model reads.

    Raises:
        OptionError: if `size` leaves no room for the bytes.
    """
    if size <= len(pre_tokenizers.ByteLevel.alphabet()):
        raise OptionError(f"--model-args vocabulary {size} is too small for 256 bytes.", "8000 suits a small corpus.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[_END], initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    number = (_END, tokenizer.token_to_id(_END))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_END} $A", pair=f"{_END} $A {_END} $B", special_tokens=[number]
    )
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), _END)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )


def marian_tokenizer(texts: Iterable[str], size: int, folder: Path, longest: int = 512) -> PreTrainedTokenizerBase:
    """Marian's tokenizer with one SentencePiece vocabulary (BPE) for both languages.

    Args:
        texts: of both languages; read once.
        size: pieces, the special ones included; small texts may yield fewer.
        folder: where its files go; it must be there.
        longest: tokens that the model reads.

    Raises:
        OptionError: if `size` is too small for the letters of the text.
    """
    _check(size)
    trained = BytesIO()  # sentencepiece says nothing of a disk that is full
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text for text in texts if text.strip()),
            model_writer=trained,
            model_type="bpe",
            vocab_size=size - 1,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        message = str(error).strip()
        reason = message.splitlines()[-1].rstrip(".")[:200] if message else type(error).__name__
        raise OptionError(
            f"No vocabulary of {size} pieces can be learned from this text: {reason}.",
            "Give another --model-args vocabulary, or more text.",
        ) from error
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(trained.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    names = dict.fromkeys(["</s>", "<unk>", *(p for p in pieces if p not in ("<s>", "</s>", "<unk>")), "<pad>"])
    vocabulary = {piece: number for number, piece in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    files: dict[str, Any] = {name: str(folder / file) for name, file in _FILES.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return transformers.MarianTokenizer(**files, model_max_length=longest)


def _check(size: int) -> None:
    if size < 32:
        raise OptionError(
            f"--model-args vocabulary {size} is too small.", "8000 suits a small corpus, 32000 a large one."
        )
