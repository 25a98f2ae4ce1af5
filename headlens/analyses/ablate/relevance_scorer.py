"""The relevance of heads as what they are pruned by: measured on the examples, or read from a run that measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headlens.analyses.ablate.importance import importances
from headlens.analyses.ablate.scorers import ImportanceEstimator
from headlens.analyses.relevance.lrp.relevance_session import RelevanceSession
from headlens.analyses.relevance.lrp.targets import (
    AnswerSpanTarget,
    EveryPosition,
    MaskedTokenLogits,
    OwnEmbedding,
    PredictedChoice,
    PredictedClass,
    SimilarityTarget,
    Target,
)
from headlens.analyses.relevance.report import RELEVANCE_COLUMNS
from headlens.analyses.relevance.shares import described, requested_rule
from headlens.attention.sites import Site
from headlens.errors import OptionError, counted
from headlens.heads import KEY_COLUMNS, Head
from headlens.interventions.compacting import without_heads
from headlens.models.loading import LoadedModel
from headlens.plots.head_grid import float_column
from headlens.runs.reading import read_recorded
from headlens.tasks.classification import SentenceSimilarity
from headlens.tasks.reader import Reader
from headlens.tasks.task import HeadKind, Task, TaskBatch

_TARGETS: dict[HeadKind, type[Target]] = {
    "sequence-classification": PredictedClass,
    "multiple-choice": PredictedChoice,
    "question-answering": AnswerSpanTarget,
    "seq2seq-lm": EveryPosition,
    "embedding": OwnEmbedding,
}


def task_target(task: Task, reader: Reader) -> Target:
    """Returns where the relevance of heads starts in a task: at what the model answers, whether it is right or not.

    Raises:
        OptionError: if the tokenizer has no mask token, for a task of masked words.
    """
    if isinstance(task, SentenceSimilarity):
        return SimilarityTarget()
    if task.head != "masked-lm":
        return _TARGETS[task.head]()
    mask_id = reader.tokenizer.mask_token_id
    if mask_id is None:
        raise OptionError(
            f"{type(reader.tokenizer).__name__} has no mask token.", "Give a masked language model, such as BERT."
        )
    return MaskedTokenLogits(int(mask_id))


class RelevanceEstimator(ImportanceEstimator):
    """Measures the relevance of heads on the ranking part, by the rule `epsilon`.

    It is the size of the mean of `raw` over rows of input (`headlens.analyses.relevance.aggregation`), which compares
    heads of all layers, as shares of a layer do not. A head that works against the answer counts as one that works for
    it: without either of them the model says something else.
    """

    def __call__(self, removed: frozenset[Head]) -> Mapping[Head, float]:
        """The relevance of the heads that are left."""
        model, task = without_heads(self.model, removed), self.examples.task.differentiable
        with RelevanceSession(task.network(model), self.target) as session:

            def measure(batch: TaskBatch, inputs: Mapping[str, Any]) -> Mapping[Site, Tensor]:
                del batch
                return session.relevance(inputs).raw

            means = importances(self.totals(model, measure), session.sites)
        return {head: abs(mean) for head, mean in means.items()}

    @property
    def target(self) -> Target:
        """What of the model's answer relevance starts from, in the task of these examples; see `task_target`."""
        return task_target(self.examples.task.differentiable, self.examples.reader)


@dataclass(frozen=True)
class RecordedRelevance:
    """The relevance of the heads of a model, as another run measured it.

    Args:
        relevance: of every head, the size of `raw`.
        measured: on what, and by which rule, in words.
    """

    relevance: Mapping[Head, float]
    measured: str

    @classmethod
    def of(cls, folder: Path, loaded: LoadedModel, heads: tuple[Head, ...]) -> RecordedRelevance:
        """Reads the run of `headlens relevance`, or `classify --relevance`, that measured a model.

        Args:
            folder: of the run.
            loaded: the model; the run's has the same weights.
            heads: all that may be pruned.

        Raises:
            InputError: if the folder is no finished run with a table of relevance, or the table is damaged.
            OptionError: if it measured no model with these weights, or not all of the heads.
        """
        run = read_recorded(folder, folder.name)
        if not run.finished or "relevance" not in run.tables:
            raise OptionError(
                f"--relevance {folder} is not a finished run that measured relevance.",
                "Name a run of headlens relevance, or of headlens classify --relevance.",
            )
        table = run.tables["relevance"]
        RELEVANCE_COLUMNS.check(table, folder / "relevance.csv")
        _, rows = requested_rule(table)
        same = [model for model in run.models if run.weights_of(model) == loaded.weight_hash]
        if not same:
            raise OptionError(
                f"--relevance {folder} measured {', '.join(run.models)}, whose weights are not those of {loaded.name}.",
                f"Measure this model: headlens relevance {loaded.name}.",
            )
        rows = rows[rows["model"] == same[0]]
        keys = rows[KEY_COLUMNS].itertuples(index=False)
        sizes = np.abs(float_column(rows, "raw"))
        found = {
            Head(stack, int(layer), int(head)): float(size)
            for (stack, layer, head), size in zip(keys, sizes, strict=True)
            if np.isfinite(size)
        }
        if missing := [head for head in heads if head not in found]:
            raise OptionError(
                f"--relevance {folder} has no raw relevance of {counted(len(missing), 'head')} of {len(heads)}, such "
                f"as {missing[0]}.",
                "Name a run that measured all heads that the task uses, or leave --relevance out.",
            )
        corpus = f" on {run.corpus_name}" if run.corpus_name else ""
        return cls(found, described(rows) + corpus)

    def __call__(self, removed: frozenset[Head]) -> Mapping[Head, float]:
        """The relevance of the heads that are left, which is that in the whole model."""
        return {head: size for head, size in self.relevance.items() if head not in removed}
