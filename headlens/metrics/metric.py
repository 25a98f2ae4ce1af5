"""What a metric is, and the observer that runs metrics over a corpus."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headlens.attention.edits_and_observers import (
    AttentionCall,
    BatchTokens,
    CallContext,
    Observer,
    Tokens,
    copied_together,
    repeat_groups,
)
from headlens.attention.kernels.blocked_softmax import blocks, weights_at_once
from headlens.attention.rows import RowNeeds
from headlens.attention.sites import Site
from headlens.errors import ExtensionError
from headlens.extensions import extension_errors
from headlens.heads import STACKS, Head, HeadTable, Stack
from headlens.metrics.accumulator import Accumulator, Array
from headlens.metrics.attention_view import CallView, EvenView, NullView, special_keys
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.row_view import RowView, fill_norms, room_for, row_facts
from headlens.options import Level

if TYPE_CHECKING:
    import pandas as pd

Result = TypeVar("Result")
# One site's sums over a corpus: name -> array whose first axis is the head.
Sums = Mapping[str, Array]
NullSums = dict[str, Mapping[str, Tensor]]  # of a batch, by metric
# Where all words have as many tokens, every pair of them ties; longer texts are not looked at ahead, but in parts.
_PAIRS_AHEAD = 2**26
NULL = "null."  # begins the names of the sums of the null head, which are among those of every site of a stack


@dataclass(frozen=True)
class MetricSettings:
    """The settings of a run that metrics read.

    Args:
        relations: names of the dependency relations, numbered as in `Tokens.arcs`.
        exclude_self: whether a word's attention to itself is left out where relations are looked at.
        baseline: by stack, offsets in units of the syntactic baseline; None where the corpus itself decides.
    """

    relations: tuple[str, ...] = ()
    exclude_self: bool = False
    baseline: Mapping[Stack, Array] | None = None


class Metric(ABC):
    """A quantity of every head: parameters only, two pure functions, and the declaration of what they measure.

    `measure` reduces one attention call to named sums; `compute` turns the sums of a site over a corpus into columns.
    A metric is one file of `headlens.metrics` (or an entry point `headlens.metrics` of another package): `columns` says
    which columns of heads.csv it fills, from which follow the console, the switch of colours and the cards of the page,
    a heatmap with its caption, and the reference.

    Attributes:
        name: of the metric, of its own table and of its figure.
        columns: the columns of heads.csv that it fills.
        own_table: whether `<name>.csv` is written, too: for metrics with several rows for each head, or with details.
        title: of its figure; by default the first sentence of the docstring.
        heading: of the figure's caption.
        caption: what the figure shows and how it is read; by default what the columns say.
        drawn: whether it has a heatmap.
        difference: title of an additional panel that shows the second column minus the first; none by default.
        stacks: where it is measured.
        sums_of_tokens: names of the sums that are arrays of the tokens alone, without an axis for the head (numbers
            need no name). None if that is not known: heads of several layers are then never measured together.
        parts_of_sentences: whether `measure` takes views of some of the queries of a sentence (`CallView.start`), so
            that memory does not grow with the square of its length: what is no sum over queries goes through
            `CallView.of_sentences`, as `ratio_sums` and `row_sums` do.
        without_null: why a metric has no `null`; there is no note on its absence then.
        row_needs: see `needs`.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[MetricColumn, ...]] = ()
    own_table: ClassVar[bool] = False
    title: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    caption: ClassVar[str] = ""
    drawn: ClassVar[bool] = True
    difference: ClassVar[str] = ""
    stacks: ClassVar[tuple[Stack, ...]] = STACKS
    sums_of_tokens: ClassVar[frozenset[str] | None] = None
    parts_of_sentences: ClassVar[bool] = False
    without_null: ClassVar[str] = ""
    row_needs: ClassVar[RowNeeds | None] = None

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a metric that would be measured and reach no table."""
        super().__init_subclass__(**more)
        if hasattr(cls, "name") and not (cls.columns or cls.own_table):
            raise TypeError(
                f"The metric {cls.name} is not written to any table: declare its columns, or set own_table = True."
            )
        of_heads = cls.columns and cls.head_columns is Metric.head_columns
        if hasattr(cls, "name") and cls.compute is Metric.compute and (of_heads or cls.table is Metric.table):
            raise TypeError(f"The metric {cls.name} makes nothing of its sums: define compute, or a table of its own.")

    @classmethod
    def has_null(cls) -> bool:
        """Whether the metric tells what the null head has: in columns that it declares, or in a table of its own."""
        return any(column.null for column in cls.columns) or cls.null is not Metric.null

    @classmethod
    def of(cls, settings: MetricSettings) -> Self:
        """Returns the metric for a run; those with parameters take them from the settings."""
        del settings
        return cls()

    def facts(self, queries: Tokens, keys: Tokens) -> Any:
        """What `measure` needs to know of the tokens of a batch alone; None where there is nothing to measure, or know.

        It is asked for ahead, on the processor while a device has the batch before: what functions that are decorated
        with `once_per_batch` work out here is copied to the device with the batch.
        """
        del queries, keys
        return None

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """What `measure` needs to know of the rows of a batch: by default `row_needs`; None if it needs their weights.

        If all metrics of a run say so, a GPU makes no map of weights: `measure` gets a `RowView` of all layers of a
        stack together, which has the attributes of a `CallView` that follow from what was asked for.
        """
        del queries, keys
        return self.row_needs

    @abstractmethod
    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Sums of one call, the head first: integers for counts, `view.sums_dtype` for the rest."""

    def null(self, view: NullView) -> Mapping[str, Tensor]:
        """Sums as of `measure` for the null head, which gives the same weight to every token that a query may see.

        A share says little without them: the longest word, which gets the most weight of uniform attention, is often
        the rarest. They are asked for where a column is declared with `null=True`; a run tells which metrics have none.
        By default what `measure` makes of the view. That is right of weights, and of targets (`view.targets`); one that
        looks for the most attended token defines it, since all keys tie and each counts by its share, see `NullView`.
        """
        return self.measure(view)

    def table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """The table of all sites; None if nothing was measured."""
        return _table({site: self.compute(site_sums) for site, site_sums in sums.items()})

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Columns of one site: each (heads,), or (heads, rows) for tables with several rows per head.

        A metric defines this, or a `table` of its own where one site does not suffice (a correction over all heads).
        """
        raise NotImplementedError  # a metric without it is refused, see `__init_subclass__`

    def more_tables(self, sums: Mapping[Site, Sums]) -> Mapping[str, pd.DataFrame]:
        """Tables by name that are not about heads, without the column `model`; by default none."""
        del sums
        return {}

    def notes(self, sums: Mapping[Site, Sums], sites: Sequence[Site]) -> list[str]:
        """What to know about the numbers, given the sites of the model; by default nothing."""
        del sums, sites
        return []

    def head_columns(self, sums: Sums) -> Mapping[str, Array]:
        """Columns of heads.csv of one site, each (heads,); by default all that `compute` gives."""
        return self.compute(sums)

    def null_table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """The columns `<name>_null` of heads.csv, alike for all heads of a stack; None where there are none."""
        names = [column.name for column in self.columns if column.null]
        null_columns: dict[Site, Mapping[str, Array]] = {}
        for site, site_sums in sums.items() if names else ():
            if null := {name.removeprefix(NULL): value for name, value in site_sums.items() if name.startswith(NULL)}:
                columns = self.head_columns(null)
                null_columns[site] = {f"{name}_null": np.repeat(columns[name], len(site.heads)) for name in names}
        return _table(null_columns)

    def head_table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """The metric's part of heads.csv; None if it has none, or nothing was measured.

        Raises:
            ExtensionError: if a column is computed and not declared, or declared and not computed, or has not a number
                for each head.
        """
        if not self.columns:
            return None
        computed = {site: self.head_columns(site_sums) for site, site_sums in sums.items()}
        declared = {name for column in self.columns for name in column.names}
        for site, columns in computed.items():
            if declared != set(columns):
                names = ", ".join(sorted(declared ^ set(columns)))
                raise ExtensionError(
                    f"The metric {self.name} does not compute the columns that it declares: {names}.",
                    "compute returns what columns says, and with interval=True the columns _ci_low and _ci_high.",
                )
            for name, values in columns.items():
                shape, kind = np.shape(values), np.asarray(values).dtype
                if shape != (len(site.heads),) or kind.kind not in "biufc":
                    raise ExtensionError(
                        f"The metric {self.name} computes {name} of shape {shape} and type {kind} for "
                        f"{len(site.heads)} heads.",
                        "measure has the heads first and sums over everything else; compute gives a number for each.",
                    )
        return _table(computed)


def _table(columns: Mapping[Site, Mapping[str, Array]]) -> HeadTable | None:
    """The columns of all sites below each other; None where there are no sites."""
    if not columns:
        return None
    heads: list[Head] = []
    for site, site_columns in columns.items():
        rows = int(np.prod(next(iter(site_columns.values())).shape[1:]))
        heads += [head for head in site.heads for _ in range(rows)]
    names = next(iter(columns.values()))
    return HeadTable.from_columns(heads, **{n: np.concatenate([c[n].ravel() for c in columns.values()]) for n in names})


def _is_ours(metric: Metric | type[Metric]) -> bool:
    return (metric if isinstance(metric, type) else type(metric)).__module__.startswith("headlens.")


def call_metric(metric: Metric | type[Metric], part: str, method: Callable[..., Result], *arguments: Any) -> Result:
    """Calls a method of a metric; errors in metrics of other packages are raised with the metric's name."""
    with contextlib.nullcontext() if _is_ours(metric) else extension_errors(f"The metric {metric.name}", part):
        return method(*arguments)


def _measured(
    metric: Metric, part: str, method: Callable[[Any], Mapping[str, Tensor]], view: Any
) -> Mapping[str, Tensor]:
    """Calls `measure` or `null` of a metric and checks the sums.

    Raises:
        ExtensionError: if that is no mapping of tensors of real numbers, which alone can be added up.
    """
    sums: Any = call_metric(metric, part, method, view)
    is_mapping = isinstance(sums, Mapping)
    if is_mapping and all(isinstance(value, Tensor) and not value.is_complex() for value in sums.values()):
        return cast("Mapping[str, Tensor]", sums)
    types = (
        [f"{n}: {getattr(v, 'dtype', type(v).__name__)}" for n, v in sums.items()]
        if is_mapping
        else [type(sums).__name__]
    )
    raise ExtensionError(
        f"The metric {metric.name} returns no sums in its {part}, but {', '.join(types)}.",
        "It returns sums by name, which are tensors of real numbers.",
    )


def _finite(metric: Metric, made: Any) -> HeadTable | None:
    """A table of a metric. NaN is an empty cell: what cannot be measured of a head; infinity is no such thing.

    Raises:
        ExtensionError: at infinity, and at numbers that are not real.
    """
    if not isinstance(made, HeadTable | None):
        what = f"The metric {metric.name} makes a table of the type {type(made).__name__}."
        raise ExtensionError(what, "Return a headlens.HeadTable, or None.")
    table: HeadTable | None = made
    for name, column in ({} if table is None else table.rows).items():
        kind = getattr(column.dtype, "kind", "O")
        if kind == "c" or (kind == "f" and np.isinf(column).any()):
            what = "complex numbers" if kind == "c" else "infinity"
            raise ExtensionError(
                f"The metric {metric.name} computes {what} in the column {name}.",
                "Return real numbers, and NaN where a head has none: its cell stays empty.",
            )
    return table


def _kind(call: AttentionCall) -> tuple[object, ...]:
    """The key of calls whose heads can be measured together: their stack, their sentences and more."""
    known = None if call.weights is None or call.gram is None else call.gram.shape[1:]
    kind = call.queries, call.keys, call.site.stack, known, call.causal, call.query.dtype, call.to_tokens is None
    # Layers may have masks of their own.
    return (*kind, None if call.allowed is None else call.site)


def _tokens_alone(site: Site, queries: Tokens, keys: Tokens, *, start: int = 0, last: bool = True) -> CallContext:
    """A call of tokens alone, on the processor if they are there, too."""
    queries, keys = queries.host or queries, keys.host or keys
    nothing = torch.empty(0, 1, 0, 0, device=queries.real.device)
    tensors, causal = (nothing, nothing, nothing), site.stack == "decoder"
    return CallContext(site, *tensors, queries, keys, causal, start=start, last=last)


def joined_heads(calls: Sequence[AttentionCall]) -> AttentionCall:
    """One call with the heads of several that are of the same sentences; its site is that of the first."""
    if len(calls) == 1:
        return calls[0]

    def joined(dimension: int, tensors: Iterable[Tensor | None]) -> Tensor | None:
        known = [t for t in tensors if t is not None]
        return torch.cat(known, dimension) if known else None

    return replace(
        calls[0],
        query=torch.cat([c.query for c in calls], 1),
        key=torch.cat([repeat_groups(c.key, c.query.shape[1]) for c in calls], 1),
        value=torch.cat([repeat_groups(c.value, c.query.shape[1]) for c in calls], 1),
        weights=joined(1, (c.weights for c in calls)),
        output=torch.cat([c.output for c in calls], 2),
        gram=joined(0, (c.gram for c in calls)),
        to_tokens=joined(1, (c.to_tokens for c in calls)),
    )


class _StackRows:
    """Statistics of the rows of a batch, of the layers of a stack that were seen so far.

    Args:
        needs: what is needed of the rows.
        call: the first one.
        n_heads: of all layers of the stack.
    """

    def __init__(self, needs: RowNeeds, call: AttentionCall, n_heads: int) -> None:
        assert call.queries is not None
        assert call.keys is not None
        self.sites: list[Site] = []
        self.n_heads: list[int] = []
        nothing = call.query.new_empty(0)
        self._first = replace(call, query=nothing, key=nothing, value=nothing, output=nothing, gram=None, rows=None)
        self._shares: list[Tensor] = []
        self._knows_norms = needs.norms
        self._facts = row_facts(needs, call.queries, call.keys)
        self._room = room_for(needs, call.queries, call.keys, n_heads)

    def add(self, call: AttentionCall) -> None:
        """Works out the statistics of the rows of one call."""
        assert call.rows is not None
        first = sum(self.n_heads)
        of_call = self._room.of_heads(slice(first, first + call.query.shape[1]))
        call.rows.fill(of_call, self._facts)
        self._knows_norms = self._knows_norms and fill_norms(of_call, call)
        self.sites.append(call.site)
        self.n_heads.append(call.query.shape[1])
        self._shares += [] if call.to_tokens is None else [call.to_tokens]

    def view(self) -> RowView:
        """Returns the view of all calls together."""
        statistics = self._room.of_heads(slice(0, sum(self.n_heads)))
        if not self._knows_norms:
            statistics.value_norms = statistics.output_norms = None
        shares = torch.cat(self._shares, 1) if self._shares else None
        return RowView(replace(self._first, to_tokens=shares), statistics, sum(self.n_heads))


class Statistics(Observer):
    """Runs metrics over every attention call and keeps nothing but their sums.

    Off the processor a metric's many small operations take longer to start than to run, so calls wait there until
    there are `together` weights, and the heads of several layers are measured as if they were of one.

    Args:
        metrics: what to measure.
        sites: the sites of the model, for the numbers of heads.
        level: token- or word-level attention for metrics that are not about words anyway.
        together: weights of the calls that are measured together; by default what suits the device. On a processor
            a kernel that uses the memory of weights again allows no more than one call.
    """

    parts = True
    needs_projection = True
    leaves_results = True

    def __init__(
        self,
        metrics: Sequence[Metric],
        sites: Sequence[Site],
        *,
        level: Level = "token",
        together: int | None = None,
    ) -> None:
        self.metrics = tuple(metrics)
        self.sites = tuple(sites)
        self.level = level
        self.totals = Accumulator()
        self.parts_of_sentences = level == "token" and all(metric.parts_of_sentences for metric in self.metrics)
        self._together = together
        # By site and metric: sums of sentences whose last queries are still to come.
        self._earlier: dict[tuple[Site, str], dict[str, tuple[Tensor, ...]]] = {}
        self._before: CallView | None = None  # the view of the queries before, of the same sentences
        self._waiting: list[AttentionCall] = []
        # By stack: of the batch at hand, which several layers ask for.
        self._needs: dict[Stack, tuple[Tokens, Tokens, RowNeeds | None]] = {}
        # By stack, and whether a part of attention goes to no token.
        self._rows: dict[tuple[Stack, bool], _StackRows] = {}
        # One site of each stack, at which tokens are looked at ahead.
        self._ahead_sites = {site.stack: site for site in reversed(self.sites) if site.heads}
        # The null head is measured at the first site of each stack that sees the whole text, as it is the same at all
        # of them; under masks, and in windows, at every site.
        self._null_sites: dict[Stack, Site] = {}
        # Its sums by tokens on the processor, where somebody looked ahead.
        self._null_ahead: WeakKeyDictionary[Tokens, dict[Stack, list[NullSums]]] = WeakKeyDictionary()

    def look_ahead(self, tokens: BatchTokens) -> None:
        """Works out all that metrics need to know of the tokens of a batch alone; the tokens are on the processor."""
        for site in self._ahead_sites.values():
            queries, keys = tokens.of(site)
            if queries is not None and keys is not None:
                special_keys(keys)
                if self.level == "token" and (needs := self._needs_of(site.stack, queries, keys)) is not None:
                    row_facts(needs, queries, keys)
                for metric in self.metrics:
                    if site.stack in metric.stacks:
                        call_metric(metric, "facts", metric.facts, queries, keys)
                if queries.real.numel() * keys.shape[1] <= _PAIRS_AHEAD:
                    counting = [m for m in self._with_null(site.stack) if self._counts(m)]
                    sums = self._null_sums(counting, EvenView(_tokens_alone(site, queries, keys)))
                    self._null_ahead.setdefault(queries, {})[site.stack] = [sums]

    def observe(self, call: AttentionCall) -> None:
        """Applies every metric that covers the call's stack, perhaps later with calls that follow."""
        if call.rows is not None:
            self._observe_rows(call)
            return
        if self._waiting and _kind(self._waiting[0]) != _kind(call):
            self._measure()
        self._waiting.append(call)
        most = self._together
        if most is None:
            most = 0 if call.query.device.type == "cpu" else weights_at_once(call.query.device)
        waiting = sum(c.weights.numel() for c in self._waiting if c.weights is not None)
        if waiting + waiting // len(self._waiting) > most:
            self._measure()

    def _measure(self) -> None:
        """Adds the sums of the calls that wait to the pending totals."""
        calls, self._waiting = self._waiting, []
        joined = CallView(joined_heads(calls), self.level)
        if joined.start and self._before is not None:
            joined.take_over(self._before)
        self._before = None if calls[-1].last else joined
        n_heads = [call.query.shape[1] for call in calls]
        views = [joined] if len(calls) == 1 else []
        for metric in self.metrics:
            of_tokens = metric.sums_of_tokens
            if calls[0].site.stack not in metric.stacks:
                continue
            if len(calls) == 1 or of_tokens is None:
                views = views or [CallView(call, self.level) for call in calls]
                for call, view in zip(calls, views, strict=True):
                    view.earlier = self._earlier.setdefault((call.site, metric.name), {})
                    self.totals.add(metric.name, str(call.site), _measured(metric, "measure", metric.measure, view))
                continue
            self._measure_together(metric, joined, [call.site for call in calls], n_heads)

        for call in calls:
            self._measure_null(call)

    def _measure_together(self, metric: Metric, view: CallView, sites: Sequence[Site], n_heads: list[int]) -> None:
        """Adds the sums of a metric to the pending totals, of a view that has the heads of several sites."""
        sums, of_tokens = _measured(metric, "measure", metric.measure, view), metric.sums_of_tokens or ()
        by_head = {n: torch.split(v, n_heads) for n, v in sums.items() if v.dim() and n not in of_tokens}
        for number, site in enumerate(sites):
            head_sums = {name: by_head[name][number] if name in by_head else value for name, value in sums.items()}
            self.totals.add(metric.name, str(site), head_sums)

    def needs(self, stack: Stack, queries: Tokens | None, keys: Tokens | None) -> RowNeeds | None:
        """What all metrics together need of the rows of a stack; None if one of them needs weights."""
        if queries is None or keys is None or self.level != "token":
            return None
        if stack not in self._needs or (queries, keys) != self._needs[stack][:2]:
            self._needs[stack] = queries, keys, self._needs_of(stack, queries, keys)
        return self._needs[stack][2]

    def _needs_of(self, stack: Stack, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        metrics = [metric for metric in self.metrics if stack in metric.stacks]
        needs = [call_metric(metric, "needs", metric.needs, queries, keys) for metric in metrics]
        # Heads of several layers are measured together.
        if None in needs or any(metric.sums_of_tokens is None for metric in metrics):
            return None
        return reduce(or_, filter(None, needs), RowNeeds())

    def reads_rows(self, context: CallContext) -> bool:
        """Whether no metric needs the weights of a call; under a mask, which may be another in each layer, they do."""
        if context.allowed is not None:
            return False
        return self.needs(context.site.stack, context.queries, context.keys) is not None

    def _observe_rows(self, call: AttentionCall) -> None:
        """Works out statistics of the rows of a call, which metrics see after the pass."""
        place = call.site.stack, call.to_tokens is not None
        if place not in self._rows:
            needs = self.needs(call.site.stack, call.queries, call.keys)
            assert needs is not None
            n_heads = sum(site.n_heads for site in self.sites if site.stack == call.site.stack)
            self._rows[place] = _StackRows(needs, call, n_heads)
        self._rows[place].add(call)
        self._measure_null(call)

    def _measure_rows(self) -> None:
        """Adds what metrics make of the rows of all layers to the pending totals."""
        stacks, self._rows = self._rows, {}
        for (stack, _), rows in stacks.items():
            view = rows.view()
            for metric in self.metrics:
                if stack in metric.stacks:
                    self._measure_together(metric, view, rows.sites, rows.n_heads)

    def _measure_null(self, call: AttentionCall) -> None:
        """Adds the sums of the null head to the pending totals, unless another site has them."""
        is_alone = call.allowed is not None or call.window is not None
        if not is_alone and self._null_sites.setdefault(call.site.stack, call.site) != call.site:
            return
        place = f"{NULL}{call.site if is_alone else call.site.stack}"
        metrics, tokens = self._with_null(call.site.stack), None if call.queries is None else call.queries.host
        counting = [m for m in metrics if call.allowed is None and self._counts(m)]
        weighing = [m for m in metrics if call.allowed is not None or not self._counts(m)]
        ahead = [] if not counting or tokens is None else self._null_ahead.get(tokens, {}).get(call.site.stack, [])
        sums = list(ahead)
        for part in self._parts(call) if weighing or (counting and not ahead) else ():
            if counting and not ahead:
                assert part.queries is not None
                assert part.keys is not None
                alone = _tokens_alone(part.site, part.queries, part.keys, start=part.start, last=part.last)
                sums.append(self._null_sums(counting, EvenView(alone)))
            if weighing:
                sums.append(self._null_sums(weighing, NullView(part, self.level)))
        for of_part in copied_together(tuple(sums), call.query.device):
            for name, own in of_part.items():
                self.totals.add(name, place, own)

    def _with_null(self, stack: Stack) -> list[Metric]:
        return [metric for metric in self.metrics if stack in metric.stacks and metric.has_null()]

    def _counts(self, metric: Metric) -> bool:
        """Whether a metric needs no weights of the null head where there is no mask: ours, of tokens."""
        return self.level == "token" and _is_ours(metric)

    def _null_sums(self, metrics: Sequence[Metric], view: NullView) -> NullSums:
        """The sums of the null head of some metrics, by their names."""
        sums: NullSums = {}
        for metric in metrics:
            view.earlier = self._earlier.setdefault((view.site, f"{NULL}{metric.name}"), {})
            sums[metric.name] = _measured(metric, "null", metric.null, view)
        return sums

    def _parts(self, call: AttentionCall) -> Iterable[CallContext]:
        """A call, in parts of so many queries that weights can be made of them; one that has weights is such a part."""
        if call.rows is None:
            return [call]
        one = {name: getattr(call, name)[:, :1] for name in ("query", "key", "value")}
        context = CallContext(call.site, **one, queries=call.queries, keys=call.keys, causal=call.causal)
        return (part for _, _, part in blocks(context, divisible=True, within=self.parts_of_sentences))

    def prepare(self) -> None:
        """Makes the pending sums of the forward pass ready to be added, without committing them."""
        if self._waiting:
            self._measure()
        self._measure_rows()
        self._needs = {}
        self.totals.fetch()

    def commit(self) -> None:
        """Adds the pending sums of the forward pass to the committed totals of the corpus."""
        self.totals.commit()

    def discard(self) -> None:
        """Drops the pending sums of a failed forward pass; the committed totals stay unchanged."""
        self._waiting, self._rows, self._needs, self._earlier, self._before = [], {}, {}, {}, None
        self.totals.discard()

    def sums(self, metric: Metric) -> dict[Site, Sums]:
        """What a metric's `measure` added up to, by site; names of sums of the null head begin with `NULL`."""
        totals = self.totals.of(metric.name)

        def null(site: Site) -> Sums:
            sums = totals.get(f"{NULL}{site}", totals.get(f"{NULL}{site.stack}", {}))
            return {f"{NULL}{name}": value for name, value in sums.items()}

        return {site: {**totals[str(site)], **null(site)} for site in self.sites if str(site) in totals}

    def tables(self) -> dict[str, HeadTable]:
        """One table per metric that measured anything, by metric name."""
        computed = {m.name: _finite(m, call_metric(m, "compute", m.table, self.sums(m))) for m in self.metrics}
        return {name: table for name, table in computed.items() if table is not None}

    def more_tables(self) -> dict[str, pd.DataFrame]:
        """The tables that are not about heads, of all metrics."""
        tables = [call_metric(m, "more_tables", m.more_tables, self.sums(m)) for m in self.metrics]
        return {name: table for part in tables for name, table in part.items()}

    def notes(self) -> list[str]:
        """What to know about the numbers, of every metric."""
        notes = [note for m in self.metrics for note in call_metric(m, "notes", m.notes, self.sums(m), self.sites)]
        notes += [note for m in self.metrics for note in self._empty(m)]
        without = [m.name for m in self.metrics if not m.has_null() and not m.without_null]
        if not without:
            return notes
        names, it = ", ".join(without), "it" if len(without) == 1 else "them"
        return [*notes, f"What uniform attention has is not known of {names}: no method null tells of {it}."]

    def _empty(self, metric: Metric) -> list[str]:
        """Notes on the empty columns of a metric of another package; those of headlens explain their own."""
        table = None if _is_ours(metric) else call_metric(metric, "compute", metric.head_table, self.sums(metric))
        names = [column.name for column in metric.columns if table is not None and table.rows[column.name].isna().all()]
        return [f"{', '.join(names)} of the metric {metric.name}: NaN for every head."] if names else []

    def head_tables(self) -> list[HeadTable]:
        """The parts of heads.csv, of every metric that fills columns of it."""
        tables = [_finite(m, call_metric(m, "compute", m.head_table, self.sums(m))) for m in self.metrics]
        # last in heads.csv
        tables += [_finite(m, call_metric(m, "compute", m.null_table, self.sums(m))) for m in self.metrics]
        return [table for table in tables if table is not None]
