"""The targets of relevance: the output neurons that relevance starts from, and how users name them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import OptionError
from headlens.models.language_outputs import token_logits
from headlens.models.loading import LoadedModel
from headlens.tasks.class_names import meanings, number_of, output_names

Inputs = Mapping[str, Any]
NAMES = ("predicted", "class:LABEL", "masked", "positions", "similarity", "embedding")
_OPTION = "--relevance-target"
_BY_CLASS = {
    "ForSequenceClassification": "predicted",
    "ForMaskedLM": "masked",
    "ForTokenClassification": "positions",
    "ForCausalLM": "positions",
    "LMHeadModel": "positions",
    "ForConditionalGeneration": "positions",
    "MTModel": "positions",  # MarianMTModel
}


@dataclass(frozen=True)
class Target(ABC):
    """Picks output neurons; an example's relevance starts as their sum.

    Args:
        rows: rows of the batch that make one example.
        pooled: whether the outputs are those of a model without a task head.
    """

    name: ClassVar[str]
    rows: ClassVar[int] = 1
    pooled: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """Name of the target in tables, such as `class:1`."""
        return self.name

    @abstractmethod
    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Neurons of the outputs times constants, rows first; everything else of a row is added up.

        Only selections and products with constants may lie between the outputs and these, so that every part is the
        relevance of the neuron it comes from. The rules hold here as in the model.

        Raises:
            OptionError: if the model has no such outputs, or a row nothing to start from.
        """

    def outputs(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns what the model gives where relevance starts, (rows, numbers): all logits, not only the chosen one.

        A model that ignores its input gives the same in all rows. There are no rows where that is not known.
        """
        logits = token_logits(outputs)
        if self.pooled:
            return _pooled(outputs, inputs)[1]
        if not isinstance(logits, Tensor):
            return torch.zeros(0, 0)
        chosen = self.parts(outputs, inputs).detach() != 0
        if logits.dim() == 2:
            return logits
        return logits[chosen] if logits.shape[:-1] == chosen.shape else torch.zeros(0, 0)


class PredictedClass(Target):
    """The largest logit of a classifier: the class that it predicts."""

    name: ClassVar[str] = "predicted"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns the largest logit of every row, (batch, 1)."""
        del inputs
        return _class_logits(outputs).amax(dim=-1, keepdim=True)


@dataclass(frozen=True)
class GivenClass(Target):
    """The logit of one class, whatever is predicted.

    Args:
        number: of the class, from 0.
    """

    number: int
    name: ClassVar[str] = "class"

    @property
    def label(self) -> str:
        """Name of the target in tables with the number of the class, such as `class:1`."""
        return f"{self.name}:{self.number}"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns the logit of the given class of every row, (batch, 1)."""
        del inputs
        logits = _class_logits(outputs)
        if not 0 <= self.number < logits.shape[1]:
            raise OptionError(f"There is no class {self.number}.", f"The model has classes 0 to {logits.shape[1] - 1}.")
        return logits[:, self.number, None]


class PredictedChoice(Target):
    """The largest logit of a multiple-choice model: the candidate that it chooses.

    Inputs are (examples, candidates, length), and every candidate is a row: those not chosen have no relevance.
    """

    name: ClassVar[str] = "choice"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns the logit of every candidate that is chosen, 0 for the others, (examples x candidates, 1)."""
        del inputs
        logits = _class_logits(outputs)
        chosen = torch.zeros_like(logits).scatter(1, logits.argmax(dim=1, keepdim=True), 1.0)
        return (logits * chosen).view(-1, 1)


class AnswerSpanTarget(Target):
    """The largest logits of the beginning and of the end of an answer in a text, added up."""

    name: ClassVar[str] = "answer"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns the logits of beginning and end, 0 but for the largest of the real tokens, (batch, 2, length)."""
        start, end = (getattr(outputs, name, None) for name in ("start_logits", "end_logits"))
        if not isinstance(start, Tensor) or not isinstance(end, Tensor):
            raise OptionError(
                f"The model is not a question-answering model ({type(outputs).__name__}).",
                "Give a question-answering model.",
            )
        logits, mask = torch.stack([start, end], dim=1), inputs.get("attention_mask")
        real = torch.ones_like(start) if mask is None else mask
        best = logits.detach().masked_fill(real[:, None] == 0, -torch.inf).argmax(dim=2, keepdim=True)
        return logits * torch.zeros_like(logits).scatter(2, best, 1.0)


@dataclass(frozen=True)
class MaskedTokenLogits(Target):
    """The largest logit at every masked position of a masked language model.

    Args:
        mask_id: id of the mask token.
    """

    mask_id: int
    name: ClassVar[str] = "masked"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """(batch, length), 0 where nothing is masked."""
        return _top_logits(outputs, inputs["input_ids"] == self.mask_id, "Mask tokens first.")


class EveryPosition(Target):
    """The largest logit at every position of a translation or a decoder's text, teacher-forced or generated.

    With `generated` inputs these are the tokens that greedy search chose.
    """

    name: ClassVar[str] = "positions"

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """(batch, target length), 0 at padding."""
        side = "decoder_" if "decoder_input_ids" in inputs else ""
        mask = inputs.get(f"{side}attention_mask")
        real = torch.ones_like(inputs[f"{side}input_ids"]) if mask is None else mask
        return _top_logits(outputs, real.bool(), "Empty translations have nothing to start from.")


@dataclass(frozen=True)
class GivenPositions(Target):
    """The largest logit at positions of a decoder's text that are named.

    Args:
        chosen: which positions of a batch these are, (batch, length); the model may give logits of the last ones alone.
    """

    chosen: Tensor
    name: ClassVar[str] = EveryPosition.name

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """(batch, positions with logits), 0 where none is chosen."""
        del inputs
        logits = _logits(outputs)
        return _top_logits(outputs, self.chosen[:, -logits.shape[1] :], "Give longer texts.")


class SimilarityTarget(Target):
    """The cosine of the mean-pooled embeddings of a pair of sentences, which are rows 2i and 2i + 1.

    cos = sum_i u_i v_i / (|u| |v|). The lengths are held constant, as LayerNorm's deviation is, and of each product
    half goes to either side: both sentences start with cos / 2, and what arrives at the inputs and biases of both adds
    up to cos.
    """

    name: ClassVar[str] = "similarity"
    rows: ClassVar[int] = 2
    pooled: ClassVar[bool] = True

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns the halves of the cosine that each token and dimension contributes, (batch, length, d)."""
        shares, unit, length = _pooled(outputs, inputs)
        if len(unit) % 2:
            raise OptionError(f"{len(unit)} rows do not make pairs of sentences.", "Give both sentences of every pair.")
        other = unit.view(-1, 2, unit.shape[1]).flip(1).flatten(0, 1)
        return shares * (other / length / 2)[:, None, :]


class OwnEmbedding(Target):
    """A sentence's embedding along itself: the similarity of a sentence with its own, constant embedding, which is 1.

    For embedding models and a corpus of single sentences: which heads make the embedding what it is.
    """

    name: ClassVar[str] = "embedding"
    pooled: ClassVar[bool] = True

    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Returns the share of the similarity with itself that each token and dimension has, (batch, length, d)."""
        shares, unit, length = _pooled(outputs, inputs)
        return shares * (unit / length)[:, None, :]


def generated(model: PreTrainedModel, inputs: Inputs, limit: int = 256) -> dict[str, Any]:
    """Inputs with what the model itself writes for them, by greedy search, as the decoder's input.

    Args:
        model: an encoder-decoder; must not be inside a session.
        inputs: `input_ids` and `attention_mask`.
        limit: most tokens to write.
    """
    generate: Any = model.generate
    with torch.no_grad():
        written: Tensor = generate(**inputs, max_new_tokens=limit, num_beams=1, do_sample=False)
    # The last token is nobody's input; what follows an end is padding.
    ids = written[:, :-1]
    ends = model.generation_config.eos_token_id
    last = torch.tensor([] if ends is None else ends, device=ids.device)
    ended = torch.isin(ids[:, 1:], last).cumsum(dim=1).bool()
    real = torch.cat([torch.ones_like(ids[:, :1], dtype=torch.bool), ~ended], dim=1)
    return {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": real.long()}


def _logits(outputs: Any) -> Tensor:
    logits = token_logits(outputs)
    if not isinstance(logits, Tensor):
        raise OptionError(
            f"The model gives no logits ({type(outputs).__name__}).",
            "Give a model with a task head, or, for a model without one, use --relevance-target similarity or "
            "embedding.",
        )
    return logits


def _class_logits(outputs: Any) -> Tensor:
    logits = _logits(outputs)
    if logits.dim() != 2:
        raise OptionError(
            f"The model is not a sentence classifier: its logits have the shape {tuple(logits.shape)}.",
            "Use --relevance-target masked for masked language models, positions for translation models.",
        )
    return logits


def _top_logits(outputs: Any, chosen: Tensor, advice: str) -> Tensor:
    """The largest logits of chosen positions, (batch, length)."""
    logits = _logits(outputs)
    if logits.shape[:2] != chosen.shape or logits.dim() != 3:
        raise OptionError(
            f"The model gives no logits for every token: their shape is {tuple(logits.shape)}.",
            "Use --relevance-target predicted for a classifier.",
        )
    if not chosen.any(dim=1).all():
        raise OptionError("An example has no position from which relevance could start.", advice)
    return logits.amax(dim=-1) * chosen


def _pooled(outputs: Any, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Every token's share in the mean (batch, length, d), the mean's direction (batch, d) and length (batch, 1)."""
    states = getattr(outputs, "last_hidden_state", None)
    if not isinstance(states, Tensor):
        raise OptionError(
            f"The model gives no embeddings ({type(outputs).__name__}).",
            "Use --relevance-target predicted, masked or positions.",
        )
    mask = inputs.get("attention_mask")
    real = (torch.ones_like(inputs["input_ids"]) if mask is None else mask)[..., None].to(states.dtype)
    shares = states * (real / real.sum(dim=1, keepdim=True))
    mean = shares.detach().sum(dim=1)
    length = mean.norm(dim=-1, keepdim=True)
    return shares, mean / length, length


def choose_target(requested: str, loaded: LoadedModel, *, paired: bool) -> Target:
    """Where relevance starts.

    Args:
        requested: one of `NAMES`, or `auto`: the largest logit of a classifier, at masked tokens of a masked language
            model, at every position of a translation or text; of a model without task head the similarity of pairs,
            or the embedding of single sentences.
        loaded: the model.
        paired: whether the corpus holds pairs.

    Raises:
        OptionError: if there is no such target, or the model or the corpus does not fit it.
    """
    name, _, label = (_default(loaded, paired=paired) if requested == "auto" else requested).partition(":")
    is_unknown = name not in {known.partition(":")[0] for known in NAMES} or bool(label and name != "class")
    kind, mask = type(loaded.model).__name__, getattr(loaded.tokenizer, "mask_token_id", None)
    classifies = kind.endswith("ForSequenceClassification")
    writes = bool(loaded.model.config.is_encoder_decoder) and not classifies
    refused = (
        (
            name == "similarity" and not paired,
            f"{_OPTION} similarity needs pairs of sentences.",
            "Name the second sentences with --target or --data-args target-column, or use embedding for single "
            "sentences.",
        ),
        (
            name == "embedding" and paired,
            f"{_OPTION} embedding takes sentences one by one, but there are pairs.",
            "Use similarity, or leave out --target and --data-args target-column.",
        ),
        (
            writes and name in ("predicted", "class", "masked"),
            f"{_OPTION} {name} is for classifiers and masked language models, but {loaded.name} generates text.",
            f"Use {_OPTION} positions.",
        ),
        (
            classifies and name in ("masked", "positions"),
            f"{_OPTION} {name}: {loaded.name} is a classifier of sentences and has one output for all tokens.",
            f"Use {_OPTION} predicted or class:LABEL.",
        ),
        (is_unknown, f"{_OPTION} {requested} is unknown.", f"Choose auto, {', '.join(NAMES)}."),
        (
            not classifies and name in ("predicted", "class"),
            f"{loaded.name} ({kind}) does not classify sentences.",
            f"Use {_OPTION} auto, or a model for sequence classification.",
        ),
        (
            name == "masked" and mask is None,
            f"{_OPTION} masked: the tokenizer of {loaded.name} has no mask token.",
            f"Use {_OPTION} embedding, or a masked language model.",
        ),
    )
    for is_refused, problem, advice in refused:
        if is_refused:
            raise OptionError(problem, advice)
    plain: tuple[Callable[[], Target], ...] = (PredictedClass, EveryPosition, SimilarityTarget, OwnEmbedding)
    if name == "class":
        return GivenClass(_class_number(label, loaded))
    if name == "masked" and mask is not None:
        return MaskedTokenLogits(int(mask))
    return next(target for target in (kind() for kind in plain) if target.name == name)


def _default(loaded: LoadedModel, *, paired: bool) -> str:
    kind = type(loaded.model).__name__
    for ending, name in _BY_CLASS.items():
        if kind.endswith(ending):
            return name
    if loaded.model.base_model is loaded.model:
        return "similarity" if paired else "embedding"
    raise OptionError(
        f"headlens does not know what the output of {kind} stands for.",
        f"Say where relevance starts: {_OPTION} embedding uses the model without its task head.",
    )


def _class_number(label: str, loaded: LoadedModel) -> int:
    """Returns the place of a class in the logits, by its name in any spelling or by its number.

    Raises:
        OptionError: if the model has no such class, more than one, or contradicts itself about its names.
    """
    outputs, number = range(loaded.model.config.num_labels or 0), number_of(label)
    by_number = {place for place in outputs if place == number}
    try:
        names = output_names(loaded)
    except ValueError as error:
        if by_number:
            return by_number.pop()
        advice = f"Give its number, from 0 to {outputs[-1]}."
        raise OptionError(
            f"{_OPTION} class:{label}: the model does not say which output that is: {error}.", advice
        ) from error
    spelled = {place for place in outputs if names[place].lower() == label.lower()}
    matching = (spelled or {place for place in outputs if meanings(names[place]) & meanings(label)}) | by_number
    listed = ", ".join(f"{place} ({name})" for place, name in enumerate(names))
    if not matching:
        raise OptionError(f"{_OPTION} class:{label}: the model has no such class.", f"Its classes: {listed}.")
    if len(matching) > 1:
        advice = f"Write class:LABEL_0 for output 0 and so on. The model's classes: {listed}."
        raise OptionError(f"{_OPTION} class:{label} is more than one class of the model.", advice)
    return matching.pop()
