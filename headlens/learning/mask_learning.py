"""Learning which positions attention needs, for one strength of the penalty: the core of `headlens train-dam`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention_masks.attention_mask import AttentionMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.learned_mask import (
    LearnedAttentionMask,
    LearnedMaskOptions,
    Scope,
    mask_sparsity,
    masked_sites,
)
from headlens.attention_masks.mask_distributions import GumbelSigmoid, MaskDistribution
from headlens.attention_masks.mask_options import read_layers
from headlens.attention_masks.mask_parametrization import at_ends
from headlens.attention_masks.named_masks import PROBABILITIES, UNMASKED
from headlens.errors import OptionError, ResumeError
from headlens.files import atomic_path, output_errors
from headlens.interventions.edited_model import EditedModel
from headlens.learning.hyperparameters import TrainingOptions, penalized_rate
from headlens.learning.penalized_training import PenalizedObjective, frozen_copy, thaw, train_penalized
from headlens.learning.sweep import MODELS
from headlens.learning.training_set import TrainingCallbacks, TrainingSet
from headlens.models.loading import LoadedModel
from headlens.options import PenaltyKind
from headlens.tables.mask_tables import CLASSES, HEADS_OF_MASKS, POSITIONS_OF_MASKS
from headlens.tables.table_schema import TableSchema
from headlens.tasks.task import Task

MASKS = "masks"  # folder of the mask files
# Masks and models of an earlier sweep in a run folder, whose penalties may have been others.
EARLIER_MASKS = [f"{part}/{name}" for part in (MASKS, MODELS) for name in ("penalty-*", "degrees_*", UNMASKED)]


@dataclass(frozen=True)
class MaskLearningOptions:
    """What mask is learned, and how.

    Args:
        mask: what it is like.
        law: how it is drawn.
        penalty: whether λ multiplies the `sum` over layers, heads and n x n positions, as the authors have it, or their
            `mean`.
        mask_learning_rate: of α, the highest; it follows the schedule of the training. None for 24 / updates, at most
            0.5.
        freeze: parts of the model that stay as they are, see `headlens.models.freezing.freeze`; None for none.
        layers: in which layers the mask holds, such as `6-11` or `last:3`; None for all.
        window: offsets that count as neighbourhood where P is followed over the training.

    Raises:
        OptionError: if a number or a name cannot be.
    """

    mask: LearnedMaskOptions = field(default_factory=lambda: LearnedMaskOptions(structured=True))
    law: MaskDistribution = field(default_factory=GumbelSigmoid)
    penalty: PenaltyKind = "sum"
    mask_learning_rate: float | None = None
    freeze: tuple[str, ...] | None = None
    layers: str | None = None
    window: int = 1

    def __post_init__(self) -> None:
        read_layers(self.layers)
        if self.penalty not in ("sum", "mean"):
            raise OptionError(f"--law penalty {self.penalty} is unknown.", "Choose sum or mean.")
        rate = self.mask_learning_rate
        if rate is not None and not 0 < rate < float("inf"):
            raise OptionError(f"--law mask-learning-rate {rate} is not a positive number.", "Try 0.05.")

    def rate(self, updates: int) -> float:
        """The highest learning rate of α in a training of so many updates."""
        return penalized_rate(self.mask_learning_rate, updates)


@dataclass(frozen=True, eq=False)
class LearnedMaskResult:
    """What training with a mask gave.

    Args:
        model: trained under the mask; it does not hold it.
        task: says which part of the model is masked.
        mask: as it was learned, in evaluation mode.
        log: of the training; `loss` has the penalty in it.
        importance: mean P of all heads by class of positions before the training and at every row of the log: columns
            step, class, p.
    """

    model: PreTrainedModel
    task: Task
    mask: LearnedAttentionMask
    log: pd.DataFrame
    importance: pd.DataFrame

    @contextmanager
    def hardened(self) -> Iterator[None]:
        """Runs the model inside `with` under the mask in its final form: positions are masked or not, without noise.

        What was added to the scores is the mask of a file then, as every other command takes it. Where noise is drawn
        `always`, every forward pass draws a mask, in the same way each time.
        """
        if self.mask.options.noise == "always":
            device = self.mask.alpha.device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                with EditedModel(self.task.network(self.model), self.mask).eval().opened():
                    yield
        elif self.mask.options.form == "multiplicative":
            with EditedModel(self.task.network(self.model), hard(self.mask)).eval().opened():
                yield
        else:
            with attach_edit(self.model, MaskEdit(LearnedMask.of("learned", self.mask).file)):
                yield


def learn_mask(
    loaded: LoadedModel,
    training_set: TrainingSet,
    strength: float,
    options: MaskLearningOptions,
    training: TrainingOptions,
    callbacks: TrainingCallbacks | None = None,
    scope: Scope | None = None,
) -> LearnedMaskResult:
    """Train a model and a mask of its attention together (Shi et al. 2021, with degrees Brahma et al. 2022).

    The last state of the training counts. Processes that train together average the gradients of α, each of which drew
    its own noise.

    Args:
        loaded: a model; it stays as it is.
        training_set: what it is trained on; no text may be longer than the mask.
        strength: λ, of the penalty.
        options: the mask.
        training: length, step size, rhythm.
        callbacks: progress, and what is kept for going on after an interruption.
        scope: heads and positions that count; the layers are those of the options.

    Raises:
        OptionError: if λ is negative, or the model has no encoder or lacks the parts that are named.
    """
    callbacks = callbacks or TrainingCallbacks()
    model = frozen_copy(loaded, options.freeze)
    network, updates = training_set.task.network(model), callbacks.updates(training_set.data, training)
    torch.manual_seed(training.seed)
    mask = made_mask(network, options, scope, updates * training.accumulate)
    objective = PenalizedObjective(training_set.objective, mask, strength, options.penalty)
    mask_options = options.mask
    members = _members(mask_options.longest, options.window) * _learnable(
        mask_options.longest, training_set.longest, mask_options.ends, mask_options.diagonal
    )
    start = {"step": 0} | _importance(mask, members)
    further: dict[str, Any] = {
        "record": lambda _: mask.log_columns() | _importance(mask, members),
        "clip_apart": True,
    }
    rate = options.rate(updates)
    rows = train_penalized(network, training_set, objective, rate, training, callbacks, **further)
    thaw(model, loaded)
    log = pd.DataFrame(rows)
    followed = pd.concat([pd.DataFrame([start]), log], ignore_index=True)[list(start)]
    importance = followed.melt("step", var_name="class", value_name="p").sort_values("step", kind="stable")
    log = log.drop(columns=[name for name in start if name != "step"])
    return LearnedMaskResult(model.eval(), training_set.task, mask.eval(), log, importance.reset_index(drop=True))


def unmasked(
    loaded: LoadedModel,
    training_set: TrainingSet,
    options: MaskLearningOptions | None = None,
    training: TrainingOptions | None = None,
    callbacks: TrainingCallbacks | None = None,
) -> PreTrainedModel:
    """A copy of the model after the same training without a mask: what `learn_mask` is to be compared with.

    Args:
        loaded: a model; it stays as it is.
        training_set: what it is trained on.
        options: say which parts are frozen, not all of them.
        training: length, step size, rhythm.
        callbacks: progress, and what is kept for going on after an interruption.
    """
    options, training = options or MaskLearningOptions(), training or TrainingOptions()
    model = frozen_copy(loaded, options.freeze)
    torch.manual_seed(training.seed)
    training_set.teach(model, training, callbacks)
    thaw(model, loaded)
    return model


def trains_weights(loaded: LoadedModel, training_set: TrainingSet, options: MaskLearningOptions) -> bool:
    """Whether any part of the model is trained beside the mask."""
    model = frozen_copy(loaded, options.freeze)
    training_set.freeze_unused(model)
    return any(p.requires_grad for p in model.parameters())


@torch.no_grad()
def _importance(mask: LearnedAttentionMask, members: Tensor) -> dict[str, float]:
    """The mean of P by class, over all heads and the positions that are learned, in the layers that are masked.

    Classes without any such position, as the first and last row and column of a structured mask, are left out.

    Args:
        mask: during its training.
        members: see `_members`.
    """
    p = mask.probabilities()
    p = p if mask.layers is None else p[list(mask.layers)]  # (layers or 1, heads or 1, n, n)
    members = members.to(p.device)
    sums, counts = p.double().mean(dim=(0, 1)).flatten() @ members, members.sum(dim=0)
    means = zip(CLASSES, sums.tolist(), counts.tolist(), strict=True)
    return {name: total / count for name, total, count in means if count}


def made_mask(
    network: PreTrainedModel, options: MaskLearningOptions, scope: Scope | None = None, draws: int = 1
) -> LearnedAttentionMask:
    """A mask for a model, before it is trained; the layers are those of the options.

    Raises:
        OptionError: if the model has no encoder, or fewer layers.
    """
    sites = masked_sites(network)
    layers = read_layers(options.layers, 1 + max(s.layer for s in sites))
    return LearnedAttentionMask(sites, options.mask, options.law, draws, replace(scope or Scope(), layers=layers))


def hard(mask: LearnedAttentionMask) -> LearnedAttentionMask:
    """A mask that keeps what the other one keeps, P > 1/2, and has neither noise nor temperature."""
    law = replace(mask.law, temperature=1.0, final_temperature=None, straight_through=True)
    hard_mask = LearnedAttentionMask(mask.sites, replace(mask.options, noise="never"), law, scope=mask.scope)
    with torch.no_grad():
        hard_mask.alpha.copy_(mask.alpha)
    return hard_mask.eval().requires_grad_(requires_grad=False)


@dataclass(frozen=True, eq=False)
class LearnedMask:
    """A mask after its training, as tensors on the processor.

    Args:
        file: what `--mask` takes: the positions that stay, and the rules for shorter sentences; of layers that are not
            masked there are none.
        probabilities: P of every position, (layers or 1, heads, n, n); 1 where a position is always active.
    """

    file: AttentionMask
    probabilities: Tensor

    @classmethod
    def of(cls, name: str, mask: LearnedAttentionMask) -> LearnedMask:
        """Copies the current probabilities and kept positions of a mask module to the CPU; `name` is for tables."""
        rules, about = (mask.options.ends, mask.options.diagonal), {"n": str(mask.options.longest)}
        file = AttentionMask(mask.kept().cpu(), *rules, name, "encoder", about, mask.layers)
        return cls(file, mask.probabilities().cpu())

    @property
    def sparsity(self) -> float:
        """Share of masked positions of all heads, of the layers that are masked."""
        return self._sparsity(self.file.allowed)

    def _sparsity(self, kept: Tensor) -> float:
        return mask_sparsity(kept if self.file.layers is None else kept[list(self.file.layers)])

    def sparsity_of(self, lengths: Mapping[int, int]) -> float:
        """The share of masked positions of texts, the mean over texts.

        Args:
            lengths: how many texts there are of each number of tokens.
        """
        shares = (self._sparsity(self.file.block(n)) * count for n, count in lengths.items())
        return sum(shares) / sum(lengths.values())

    def sparsities(self) -> pd.DataFrame:
        """The share of masked positions of every head, and of all heads in the last row, without layer and head.

        All n x n positions count, the first and last row and column among them, as in the paper's table; masks that are
        shared by the layers have no layer.
        """
        rows = [{**key, "sparsity": mask_sparsity(kept)} for key, kept in self._heads(self.file.allowed)]
        rows.append({"layer": None, "head": None, "sparsity": self.sparsity})
        return self._frame(rows, HEADS_OF_MASKS)

    def positions(self, window: int = 1, lengths: Counter[int] | None = None) -> pd.DataFrame:
        """The mean P and the share that is kept, by class and by offset, of every head.

        Only positions that are learned count: those that some text of the training has, and that the mask does not
        hold open (the first and last row and column of the structured form) or closed (the diagonal, without it). Where
        none of a class or offset is learned, P and the share are empty.

        Every position is of one class, the first that fits: `special` are the first and last row and column, `diagonal`
        is i = j, `neighbourhood` |i - j| up to the window, `rest` all others. Rows of the class `offset` have those
        with one |i - j| that are not special. `texts` is the share of the training texts that a position of the class
        is learned from, the mean over its positions: those that have it, in the structured form its offset.

        Args:
            window: w of the neighbourhood.
            lengths: how many texts of the training have how many tokens; None where all are as long as the mask.
        """
        n = self.file.length
        texts = np.array(list((lengths or Counter([n])).elements()))
        groups = [*zip(CLASSES, repeat(None)), *zip(repeat("offset"), range(n - 2))]
        apart, special = _places(n)
        of_offsets = apart.masked_fill(special, n) == torch.arange(n - 2)
        every = torch.cat([_members(n, window).bool(), of_offsets], dim=1).double()
        members = every * _learnable(n, int(texts.max()), self.file.ends, self.file.diagonal)
        counts, occurs = members.sum(dim=0), every.any(dim=0).tolist()
        kinds = (self.probabilities, self.file.allowed)
        # (layers or 1, heads, P or what stays, groups)
        means = torch.stack([t.double().flatten(2) @ members / counts for t in kinds], dim=2)
        # A position is in the texts that are longer than both of its places; an offset stands between the ends of those
        # that are longer by two.
        places = torch.arange(n)
        exceeded = apart + 2 if self.file.ends else torch.maximum(places[:, None], places)
        having = torch.from_numpy((texts[:, None] > np.arange(n + 2)).mean(0))[exceeded.flatten()]
        rows = [
            {**key, "class": name, "offset": offset, "positions": int(count), "p": p, "kept": kept, "texts": share}
            for key, of_head in self._heads(means)
            for (name, offset), count, is_there, p, kept, share in zip(
                groups, counts.tolist(), occurs, *of_head.tolist(), (having @ members / counts).tolist(), strict=True
            )
            if is_there
        ]
        return self._frame(rows, POSITIONS_OF_MASKS)

    def _heads(self, values: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Layer and head, and what belongs to them, of (layers or 1, heads, ...)."""
        for layer in range(len(values)) if self.file.layers is None else self.file.layers:
            for head, matrix in enumerate(values[layer]):
                yield {"layer": layer if len(values) > 1 else None, "head": head}, matrix

    def _frame(self, rows: list[dict[str, Any]], schema: TableSchema) -> pd.DataFrame:
        columns = [name for name in schema.names if name != "penalty"]  # which the mask does not know
        common: dict[str, Any] = {"mask": self.file.name, "diagonal": self.file.diagonal, "n": self.file.length}
        frame = pd.DataFrame(rows).assign(**common)[columns]
        return frame.astype({name: pd.Int64Dtype() for name in ("layer", "head", "offset") if name in columns})


def save_mask(path: Path, learned: LearnedMask, result: LearnedMaskResult) -> None:
    """Write a mask in its final form, and beside it the P that it came from.

    Raises:
        OutputError: if the folder cannot be written.
    """
    about = {"form": result.mask.options.form, "task": result.task.name}
    mask = replace(learned.file, metadata={**learned.file.metadata, **about})
    with output_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        mask.save(path)
        with atomic_path(path.with_name(PROBABILITIES)) as temporary:
            save_file({"p": learned.probabilities.float().contiguous()}, temporary)


def load_mask(folder: Path) -> LearnedMask:
    """What `save_mask` wrote.

    Raises:
        ResumeError: if it cannot be read.
    """
    try:
        return LearnedMask(AttentionMask.load(folder), load_file(folder / PROBABILITIES)["p"])
    except Exception as error:  # also what masks are refused with elsewhere: this one was kept to go on
        raise ResumeError(
            f"{folder} no longer has a readable mask: {error}", "Start again with --overwrite."
        ) from error


def _places(n: int) -> tuple[Tensor, Tensor]:
    """The offset |i - j| of every position, and whether it is in the first or last row or column: (n * n, 1)."""
    places = torch.arange(n)
    return (places[:, None] - places).abs().view(-1, 1), at_ends(torch.tensor([n]), n).view(-1, 1)


def _members(n: int, window: int) -> Tensor:
    """1 where a position is of a class, else 0: (n * n, classes); a product with it sums over the positions of each."""
    apart, special = _places(n)
    number = (1 + (apart > 0).int() + (apart > window)).masked_fill(special, 0)
    return (number == torch.arange(len(CLASSES))).double()


def _learnable(n: int, longest: int, ends: bool, diagonal: bool) -> Tensor:  # noqa: FBT001
    """1 where P of a position is learned, else 0: (n * n, 1). See `LearnedMask.positions`."""
    apart, special = _places(n)
    # The form that holds the ends open does so at the last token of every text: no text learns it.
    within = (torch.arange(n) < longest - ends).float()
    learned = torch.outer(within, within).view(-1, 1)
    return (learned * ~(special & ends) * ~((apart == 0) & (not diagonal))).double()
