"""headlens: what every attention head of a transformer does, and what a model loses without it.

Names are resolved when they are first used: `import headlens` alone loads neither torch nor transformers.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from headlens.analyses.ablate.options import AblationOptions
    from headlens.analyses.ablate.single_heads import Ablation, ablate_heads
    from headlens.analyses.model_check import check_model
    from headlens.api import (
        ablate,
        attend,
        classify,
        compact,
        masks,
        probe,
        prune,
        relevance,
        report,
        reproduce,
        sparsefinder,
        train,
        train_dam,
    )
    from headlens.attention.attach_edit import attach_edit
    from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, CallContext, Edit, Observer, Tokens
    from headlens.attention.session import AttentionSession
    from headlens.attention.sites import Site, find_sites
    from headlens.attention_masks.attention_mask import AttentionMask
    from headlens.attention_masks.attention_mask_edit import MaskEdit
    from headlens.corpora.sentence import Corpus, Example, Sentence, Word
    from headlens.corpora.sources import open_corpus
    from headlens.errors import HeadlensError
    from headlens.heads import Head, HeadTable
    from headlens.interventions.compacting import compact_model
    from headlens.interventions.gates import HeadGates
    from headlens.learning.gate_options import GateOptions
    from headlens.learning.gate_training import Pruned, StochasticGates, train_gates
    from headlens.learning.training_set import TrainingSet
    from headlens.maps.sentence_attention import collect_attention
    from headlens.metrics.attention_view import CallView
    from headlens.metrics.metric import Metric, Statistics
    from headlens.metrics.metric_column import MetricColumn
    from headlens.models.loading import LoadedModel, load
    from headlens.models.model_options import ModelOptions
    from headlens.pages.attention_page import attention_page
    from headlens.relevance_propagation.head_relevance import HeadRelevances, head_relevance
    from headlens.relevance_propagation.relevance_options import RelevanceOptions
    from headlens.relevance_propagation.relevance_session import RelevanceSession
    from headlens.result import Result
    from headlens.roles.head_roles import Classification, classify_heads
    from headlens.roles.role_options import ClassifyOptions, Thresholds
    from headlens.runs.corpus_pass import CorpusReader
    from headlens.statistics.bootstrap import Draws
    from headlens.tasks.evaluation import EvaluationOptions, evaluate, paired_comparison
    from headlens.tasks.example_sources import DataOptions
    from headlens.tasks.open_task import open_task
    from headlens.tasks.task_examples import Examples

_HOMES = {
    "analyses.ablate.options": ("AblationOptions",),
    "analyses.ablate.single_heads": ("Ablation", "ablate_heads"),
    "analyses.model_check": ("check_model",),
    "api": (
        "ablate", "attend", "classify", "compact", "masks", "probe", "prune", "relevance", "report",
        "reproduce", "sparsefinder", "train", "train_dam",
    ),
    "attention.attach_edit": ("attach_edit",),
    "attention.edits_and_observers": ("AttentionCall", "BatchTokens", "CallContext", "Edit", "Observer", "Tokens"),
    "attention.session": ("AttentionSession",),
    "attention.sites": ("Site", "find_sites"),
    "attention_masks.attention_mask": ("AttentionMask",),
    "attention_masks.attention_mask_edit": ("MaskEdit",),
    "corpora.sentence": ("Corpus", "Example", "Sentence", "Word"),
    "corpora.sources": ("open_corpus",),
    "errors": ("HeadlensError",),
    "heads": ("Head", "HeadTable"),
    "interventions.compacting": ("compact_model",),
    "interventions.gates": ("HeadGates",),
    "learning.gate_options": ("GateOptions",),
    "learning.gate_training": ("Pruned", "StochasticGates", "train_gates"),
    "learning.training_set": ("TrainingSet",),
    "maps.sentence_attention": ("collect_attention",),
    "metrics.attention_view": ("CallView",),
    "metrics.metric": ("Metric", "Statistics"),
    "metrics.metric_column": ("MetricColumn",),
    "models.loading": ("LoadedModel", "load"),
    "models.model_options": ("ModelOptions",),
    "pages.attention_page": ("attention_page",),
    "relevance_propagation.head_relevance": ("HeadRelevances", "head_relevance"),
    "relevance_propagation.relevance_options": ("RelevanceOptions",),
    "relevance_propagation.relevance_session": ("RelevanceSession",),
    "result": ("Result",),
    "roles.head_roles": ("Classification", "classify_heads"),
    "roles.role_options": ("ClassifyOptions", "Thresholds"),
    "runs.corpus_pass": ("CorpusReader",),
    "statistics.bootstrap": ("Draws",),
    "tasks.evaluation": ("EvaluationOptions", "evaluate", "paired_comparison"),
    "tasks.example_sources": ("DataOptions",),
    "tasks.open_task": ("open_task",),
    "tasks.task_examples": ("Examples",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Ablation", "AblationOptions", "AttentionCall", "AttentionMask", "AttentionSession", "BatchTokens", "CallContext",
    "CallView", "Classification", "ClassifyOptions", "Corpus", "CorpusReader", "DataOptions", "Draws", "Edit",
    "EvaluationOptions", "Example", "Examples", "GateOptions", "Head", "HeadGates", "HeadRelevances", "HeadTable",
    "HeadlensError", "LoadedModel", "MaskEdit", "Metric", "MetricColumn", "ModelOptions", "Observer", "Pruned",
    "RelevanceOptions", "RelevanceSession", "Result", "Sentence", "Site", "Statistics", "StochasticGates",
    "Thresholds", "Tokens", "TrainingSet", "Word", "ablate", "ablate_heads", "attach_edit", "attend", "attention_page",
    "check_model",
    "classify", "classify_heads", "collect_attention", "compact", "compact_model", "evaluate", "find_sites",
    "head_relevance", "load", "masks", "open_corpus", "open_task", "paired_comparison", "probe", "prune",
    "relevance", "report", "reproduce", "sparsefinder", "train", "train_dam", "train_gates",
]  # fmt: skip


if not TYPE_CHECKING:  # a checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            value = getattr(import_module(f"headlens.{_HOME_OF[name]}"), name)
        # A module is none of the commands, whose options may be what imports it.
        elif name.startswith("_") or find_spec(f"headlens.{name}") or (command := _command(name)) is None:
            raise AttributeError(f"module 'headlens' has no attribute {name!r}")
        else:
            value = import_module("headlens.api").function_of(command)
        globals()[name] = value
        return value


def _command(name: str) -> Any:
    """The command of a name; commands that `headlens.api` has no function for get one."""
    return import_module("headlens.analyses.commands").commands().get(name.replace("_", "-"))


def __dir__() -> list[str]:
    return sorted(__all__)
