"""One function per command: the equivalent of `headlens NAME` in Python, with the same options and defaults.

    result = headlens.classify("bert-base-uncased", "en_ewt-ud-test.conllu", relations="nsubj,obj")
    result.tables["heads"]; result.plot("confidence"); result.save("runs/bert")

A model is a name, a folder, a transformers model with its tokenizer as a tuple `(model, tokenizer)`, or a
`LoadedModel`. Options
have the same names as on the command line, with underscores; `out` is a run folder that is kept and can be resumed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import pandas as pd

from headlens.analyses.attend.options import is_sentence
from headlens.analyses.attend.report import attend_figures
from headlens.analyses.commands import commands
from headlens.corpora.text import TextList
from headlens.errors import OptionError
from headlens.files import output_errors
from headlens.hub_access import only_cache
from headlens.models.given_models import (
    check_given,
    check_weights_at_hand,
    made_ready,
    random_numbers_untouched,
)
from headlens.models.loading import LoadedModel
from headlens.options import DEMO, CommandOptions, Given
from headlens.result import Result, given_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headlens import keywords
    from headlens.corpora.sentence import Corpus
    from headlens.heads import Head
    from headlens.metrics.metric import Metric

    Model = str | Path | LoadedModel | tuple[PreTrainedModel, PreTrainedTokenizerBase | None]

F = TypeVar("F", bound=Callable[..., Result])


def _documented(function: F, command: CommandOptions | None = None) -> F:
    """Gives a function the signature of a command, that of its name, and the arguments in words."""
    command = command or commands()[function.__name__.replace("_", "-")]
    signature = inspect.signature(function)
    fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    # `show` is for the command line alone.
    others = [o for name, o in command.options.items() if name not in {*signature.parameters, "models", "show"}]
    keywords = [
        inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=o.hint)
        for o in others
        if o.default is not MISSING
    ]
    documented: Any = function
    documented.__signature__ = signature.replace(parameters=[*fixed, *keywords])
    lines = [f"    {o.name}: {o.option.help}" for o in others]
    documented.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
    return function


@_documented
def classify(
    model: Model | Sequence[Model] = DEMO,
    corpus: str | Path | Corpus | Iterable[str] = DEMO,
    *,
    metrics: Sequence[Metric] = (),
    **options: Unpack[keywords.Classify],
) -> Result:
    """Describes what every attention head does (confidence, positions, syntax, rare words) and names its role.

    Args:
        model: one model, or a list of two to compare.
        corpus: sentences: `demo`, a file, `hub:NAME`, a list of them, or a `Corpus`.
        metrics: your own metrics, measured in addition to the built-in ones.
        options: those of `headlens classify`.

    Returns:
        Tables `heads`, `positions`, and, if the corpus allows, `syntax`, `rare`, `similarity`, `relevance`.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("classify", {"models": _models(model), "corpus": _corpus(corpus), "metrics": tuple(metrics), **options})


@_documented
def relevance(
    model: Model = DEMO, corpus: str | Path | Corpus | Iterable[str] = DEMO, **options: Unpack[keywords.Relevance]
) -> Result:
    """Measures what every attention head contributes to the output, by layer-wise relevance propagation.

    Args:
        model: the model.
        corpus: sentences, or pairs.
        options: those of `headlens relevance`.

    Returns:
        Tables `relevance`, and `correlations` where several rules are compared.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("relevance", {"model": _model(model), "corpus": _corpus(corpus), **options})


@_documented
def ablate(model: Model | Sequence[Model] = DEMO, task: str = "auto", **options: Unpack[keywords.Ablate]) -> Result:
    """Measures what every attention head is worth: task performance without each head, and with many heads pruned.

    Args:
        model: one model, or a list of two to compare.
        task: the name of a task; `auto` is `causal-lm` for decoders and the bundled `paraphrase` for others.
        options: those of `headlens ablate`.

    Returns:
        Tables `ablation`, `examples`, and `pruning` where heads were pruned.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("ablate", {"models": _models(model), "task": task, **options})


@_documented
def attend(
    model: Model = DEMO,
    text: str | Sequence[str] = (),
    *,
    second: Model | None = None,
    **options: Unpack[keywords.Attend],
) -> Result:
    """Shows where every head looks in given sentences, for exploration in a notebook: `headlens.attend("A sentence.")`.

    Args:
        model: the model; a text with a space that names no folder is a sentence for the demo model.
        text: one sentence or several; by default an example sentence.
        second: another model, shown beside the first.
        options: those of `headlens attend`.

    Returns:
        No table; the maps are in the result folder as `attention.safetensors`, and are drawn as its figures; the page
        `attention.html` there is what a notebook shows.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    texts = (text,) if isinstance(text, str) else tuple(text)
    if isinstance(model, str) and is_sentence(model):
        model, texts = DEMO, (model, *texts)
    models = {"model": _model(model), "second": None if second is None else _model(second)}
    return _run("attend", {**models, "text": texts or None, **options}, attend_figures)


@_documented
def masks(model: Model = DEMO, task: str | None = None, **options: Unpack[keywords.Masks]) -> Result:
    """Counts and draws fixed attention patterns, and with a task trains models under them.

    Args:
        model: the model to train under the masks; the given model is not changed.
        task: the name of a task; None trains nothing.
        options: those of `headlens masks`.

    Returns:
        Tables `sparsity`, and `masks` and others of what was trained.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("masks", {"model": _model(model, copied=True), "task": task, **options})


@_documented
def sparsefinder(
    model: Model = DEMO, corpus: str | Path | Corpus | Iterable[str] = DEMO, **options: Unpack[keywords.Sparsefinder]
) -> Result:
    """Predicts which attention weights of an entmax model will be zero, and measures how good the predictions are.

    Args:
        model: the model; it is not changed.
        corpus: sentences, of which a part is held out.
        options: those of `headlens sparsefinder`.

    Returns:
        Tables `pareto`, `areas`, `heads`, `clusters` and others.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("sparsefinder", {"model": _model(model, copied=True), "corpus": _corpus(corpus), **options})


@_documented
def probe(model: Model = DEMO, corpus: str | Path | Corpus = DEMO, **options: Unpack[keywords.Probe]) -> Result:
    """Finds the governor of every word from the attention of all heads, with a learned weight per head and direction.

    Args:
        model: the model.
        corpus: a treebank with gold trees.
        options: those of `headlens probe`.

    Returns:
        Tables `probe` and `probe_weights`.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("probe", {"model": _model(model), "corpus": _corpus(corpus), **options})


@_documented
def prune(model: Model = DEMO, task: str = "auto", **options: Unpack[keywords.Prune]) -> Result:
    """Prunes heads with learned gates: continues training a model while a penalty closes the gates of heads.

    Args:
        model: a trained model; it is not changed.
        task: the name of a task; `auto` is `causal-lm` for decoders and the bundled `paraphrase` for others.
        options: those of `headlens prune`.

    Returns:
        Tables `gates`, `sweep`, `log` and others; pruned models lie in the folder of the result.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("prune", {"model": _model(model, copied=True), "task": task, **options})


@_documented
def compact(model: Model = DEMO, heads: str | Sequence[str | Head] = (), **options: Unpack[keywords.Compact]) -> Result:
    """Cuts attention heads out of a model: a smaller and faster checkpoint, equal to the model with these heads at 0.

    Args:
        model: the model; it is not changed.
        heads: names of heads to cut out, such as `encoder.3.1`.
        options: those of `headlens compact`.

    Returns:
        Table `compact`; the checkpoint lies in the folder of the result.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("compact", {"model": _model(model, copied=True), "heads": heads, **options})


@_documented
def train(model: Model = DEMO, task: str | None = None, **options: Unpack[keywords.Train]) -> Result:
    """Trains a model on labelled examples of a task, on masked language modelling, or on translation.

    Args:
        model: a checkpoint to start from, or `new:NAME` for random weights; a model object is copied and not changed.
        task: the name of a task; None is `mlm`, or what a new model is made for.
        options: those of `headlens train`.

    Returns:
        Tables `log`, `evaluations`, `metrics`; the checkpoint lies in `model` in the folder of the result.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("train", {"model": _model(model, copied=True), "task": task, **options})


@_documented
def train_dam(model: Model = DEMO, task: str = "auto", **options: Unpack[keywords.TrainDam]) -> Result:
    """Learns which positions attention needs: trains a model together with masks, and shows how sparse they can be.

    Args:
        model: a checkpoint, or `new:NAME` for random weights; a model object is copied and not changed.
        task: the name of a task; `auto` is `causal-lm` for decoders and the bundled `paraphrase` for others.
        options: those of `headlens train-dam`.

    Returns:
        Tables `sparsity`, `positions`, `sweep` and others; masks lie in the folder of the result.

    Raises:
        InputError: if an argument, the model or the data is invalid.
    """
    return _run("train-dam", {"model": _model(model, copied=True), "task": task, **options})


@_documented
def report(*runs: str | Path | Result | Sequence[str | Path | Result], **options: Unpack[keywords.Report]) -> Result:
    """Draws the figures of runs again from their tables, and writes one self-contained page, `report.html`.

    Args:
        runs: run folders, or results, or a list of them; several are shown side by side.
        options: those of `headlens report`.

    Returns:
        The folder with the page; without `out`, a single run's page is written into the folder of that run.

    Raises:
        InputError: if a run cannot be read or drawn.
    """
    given = [one for run in runs for one in (run if isinstance(run, list | tuple) else [run])]
    folders = tuple(given_folder(one, 'Write headlens.report("runs/a", "runs/b", out="runs/both").') for one in given)
    command = commands()["report"]
    request = command.request({"runs": folders, **_named(command, options)})
    return Result("report", command.execute(request), parts=given)


@_documented
def reproduce(paper: str | Path, **options: Unpack[keywords.Reproduce]) -> Result:
    """Runs the setting of a paper, command by command, and puts our numbers next to the published ones.

    Args:
        paper: the name of a recipe, such as `voita2019`, or a TOML file.
        options: those of `headlens reproduce`.

    Returns:
        Table `comparison`; the steps' runs lie in the folder of the result.

    Raises:
        InputError: whatever is wrong with the recipe.
        HeadlensError: if a step fails.
    """
    return _run("reproduce", {"paper": paper, **options})


def function_of(command: CommandOptions) -> Callable[..., Result]:
    """Returns a function for a command that has none of its own here: its arguments are the command's options."""

    def function(**options: Any) -> Result:
        ways: dict[str, Callable[[Any], str]] = {"model": _model, "corpus": _corpus}
        return _run(command, options | {name: way(options[name]) for name, way in ways.items() if name in options})

    function.__name__ = function.__qualname__ = command.name.replace("-", "_")
    function.__doc__ = f"Equivalent of `headlens {command.name}`."
    return _documented(function, command)


@random_numbers_untouched()
def _run(command: str | CommandOptions, values: Mapping[str, Any], draw: Any = None) -> Result:
    """Runs a command in the folder that is asked for, or in one that is there as long as its result."""
    command = commands()[command] if isinstance(command, str) else command
    arguments = _named(command, values)
    folder = None
    if arguments.get("out") is None:
        with output_errors("a temporary folder"):
            folder = Path(mkdtemp(prefix=f"headlens-{command.name}-"))
        # Figures are drawn when they are asked for.
        arguments = {"figures": False, **arguments} if "figures" in command.options else arguments
        arguments |= {"out": folder / "run"}
    try:
        with ExitStack() as undo:
            undo.enter_context(only_cache(enabled=bool(arguments.get("offline"))))
            opened = {name: _opened(value, undo) for name, value in arguments.items()}
            run = command.execute(command.request(opened))
    except BaseException:
        if folder is not None:
            with suppress(OSError):  # it holds what can be resumed
                folder.rmdir()
        raise
    return Result(command.name, run, folder, draw)


def _opened(value: Any, undo: ExitStack) -> Any:
    """The value of an option; models that were given are ready to be read, and as they were when `undo` is closed."""
    if isinstance(value, tuple):
        return tuple(_opened(one, undo) for one in value)
    if not isinstance(value, Given) or not isinstance(value.value, _Pair | LoadedModel):
        return value
    undo.enter_context(made_ready(value.value.model))
    return Given(str(value), value.value.loaded(str(value)) if isinstance(value.value, _Pair) else value.value)


def _named(command: CommandOptions, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options, of which all are known.

    Raises:
        OptionError: for a name that is none of the command's.
    """
    more = {name: values[name] for name in ("metrics", "resume") if name in values}
    return command.by_field({n: v for n, v in values.items() if n not in more}, f"headlens.{command.name}") | more


@dataclass(frozen=True)
class _Pair:
    """A model with its tokenizer as they were given; a `LoadedModel` would set some of the model's settings."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None

    def loaded(self, name: str) -> LoadedModel:
        return LoadedModel(name, self.model, self.tokenizer, None)


def _model(model: Model, *, copied: bool = False) -> str:
    """A model as options name it; one that the command would change is copied."""
    if isinstance(model, str | Path):
        return str(model)
    given: LoadedModel | _Pair
    if isinstance(model, LoadedModel):
        name, given = model.name, model
    else:
        check_given(model)
        name, given = model[0].name_or_path or type(model[0]).__name__, _Pair(*model)
    check_weights_at_hand(name, given.model)
    return Given(name, replace(given, model=copy.deepcopy(given.model)) if copied else given)


def _models(model: Model | Sequence[Model]) -> tuple[str, ...]:
    return tuple(map(_model, model)) if isinstance(model, list) else (_model(cast("Model", model)),)


def _corpus(corpus: str | Path | Corpus | Iterable[str]) -> str:
    """A corpus as options name it; sentences may be a list, or a column of pandas."""
    if isinstance(corpus, str | Path):
        return str(corpus)
    if isinstance(corpus, pd.DataFrame) or not isinstance(corpus, Iterable):
        raise OptionError(
            f"corpus cannot be of the type {type(corpus).__name__}.",
            "Give a list of sentences, such as frame['text'], the name of a file, or a Corpus.",
        )
    texts = isinstance(corpus, pd.Series) or not hasattr(corpus, "name")
    given: Corpus = TextList(tuple(cast("Iterable[str]", corpus))) if texts else cast("Corpus", corpus)
    return Given(given.name, given)
