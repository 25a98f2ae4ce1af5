"""headlens: what every attention head of a transformer does, and what it is worth.

Names are resolved when they are first used: `import headlens` alone loads neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from headlens.attention.contract import AttentionCall, BatchTokens, CallContext, Edit, Observer, Tokens
    from headlens.attention.kept import keeping
    from headlens.attention.session import AttentionSession
    from headlens.attention.sites import Site, find_sites
    from headlens.corpora.sentence import Corpus, Example, Sentence, Word
    from headlens.corpora.sources import open_corpus
    from headlens.errors import HeadlensError
    from headlens.experiments.ablate import Ablation, AblationOptions, ablate
    from headlens.experiments.attend import attend
    from headlens.experiments.check import check
    from headlens.experiments.classify import Classification, ClassifyOptions, classify
    from headlens.experiments.examples import Examples
    from headlens.experiments.lesson import Lesson
    from headlens.experiments.prune import GateOptions, Pruned, prune
    from headlens.experiments.relevance import HeadRelevances, RelevanceOptions, head_relevance
    from headlens.heads import Head, HeadTable
    from headlens.interventions.attention_mask import AttentionMask
    from headlens.interventions.compacting import compact
    from headlens.interventions.gates import HeadGates
    from headlens.interventions.masking import MaskEdit
    from headlens.interventions.stochastic_gates import StochasticGates
    from headlens.metrics.base import Metric, Statistics
    from headlens.models.loading import LoadedModel, ModelOptions, load
    from headlens.relevance.session import RelevanceSession
    from headlens.roles.labels import Thresholds
    from headlens.tasks.evaluation import evaluate
    from headlens.tasks.opening import open_task

_HOMES = {
    "attention.contract": ("AttentionCall", "BatchTokens", "CallContext", "Edit", "Observer", "Tokens"),
    "attention.kept": ("keeping",),
    "attention.session": ("AttentionSession",),
    "attention.sites": ("Site", "find_sites"),
    "corpora.sentence": ("Corpus", "Example", "Sentence", "Word"),
    "corpora.sources": ("open_corpus",),
    "errors": ("HeadlensError",),
    "experiments.ablate": ("Ablation", "AblationOptions", "ablate"),
    "experiments.attend": ("attend",),
    "experiments.check": ("check",),
    "experiments.classify": ("Classification", "ClassifyOptions", "classify"),
    "experiments.examples": ("Examples",),
    "experiments.lesson": ("Lesson",),
    "experiments.prune": ("GateOptions", "Pruned", "prune"),
    "experiments.relevance": ("HeadRelevances", "RelevanceOptions", "head_relevance"),
    "heads": ("Head", "HeadTable"),
    "interventions.attention_mask": ("AttentionMask",),
    "interventions.compacting": ("compact",),
    "interventions.gates": ("HeadGates",),
    "interventions.masking": ("MaskEdit",),
    "interventions.stochastic_gates": ("StochasticGates",),
    "metrics.base": ("Metric", "Statistics"),
    "models.loading": ("LoadedModel", "ModelOptions", "load"),
    "relevance.session": ("RelevanceSession",),
    "roles.labels": ("Thresholds",),
    "tasks.evaluation": ("evaluate",),
    "tasks.opening": ("open_task",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Ablation",
    "AblationOptions",
    "AttentionCall",
    "AttentionMask",
    "AttentionSession",
    "BatchTokens",
    "CallContext",
    "Classification",
    "ClassifyOptions",
    "Corpus",
    "Edit",
    "Example",
    "Examples",
    "GateOptions",
    "Head",
    "HeadGates",
    "HeadRelevances",
    "HeadTable",
    "HeadlensError",
    "Lesson",
    "LoadedModel",
    "MaskEdit",
    "Metric",
    "ModelOptions",
    "Observer",
    "Pruned",
    "RelevanceOptions",
    "RelevanceSession",
    "Sentence",
    "Site",
    "Statistics",
    "StochasticGates",
    "Thresholds",
    "Tokens",
    "Word",
    "ablate",
    "attend",
    "check",
    "classify",
    "compact",
    "evaluate",
    "find_sites",
    "head_relevance",
    "keeping",
    "load",
    "open_corpus",
    "open_task",
    "prune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headlens' has no attribute {name!r}")
    value = getattr(import_module(f"headlens.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
