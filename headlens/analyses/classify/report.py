"""The figures of `headlens classify`, from the tables it wrote, and what it tells about single heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd

from headlens.analyses.classify import (
    circuit_report,
    overviews,
    position_figure,
    roles_over_training,
    similarity_figure,
    syntax_figure,
)
from headlens.analyses.classify.findings import recorded_findings
from headlens.analyses.classify.metric_declarations import (
    MetricDeclaration,
    baselines_of,
    declarations_of,
    measured_columns,
    registered_declarations,
)
from headlens.analyses.classify.probe_report import PROBE_CAPTION, probe_map, probe_overview
from headlens.analyses.classify.rare_word_figure import rare_word_figures
from headlens.analyses.classify.role_map import function_map, relevance_roles
from headlens.findings import layer_smoothness
from headlens.maps.stored_maps import read_maps
from headlens.models.names import first_and_last, recorded_steps
from headlens.pages.attention_page import AttentionView
from headlens.pages.command_report import Caption, CommandReport, Figures
from headlens.pages.formatting import share_text
from headlens.pages.head_cards import HeadFacts, HeadSeries, HeadShares, HeadWords, SentenceMap
from headlens.pages.page_tables import PageTable
from headlens.plots.head_grid import float_column, rows_of_models
from headlens.plots.role_colours import ARROWS, COLOURS, FAMILIES, NONE, families, short
from headlens.plots.style import between_tokens, named_after
from headlens.relevance_propagation.figures import CAPTIONS as RELEVANCE_CAPTIONS
from headlens.relevance_propagation.figures import RELEVANCE_SOURCES, relevance_figures
from headlens.relevance_propagation.overviews import largest_heads_table, layer_words, relevance_series, top_heads
from headlens.relevance_propagation.scatter_figure import confidence_against_relevance
from headlens.roles.even_attention import even_stacks, without_even
from headlens.roles.syntax_verdicts import is_marked
from headlens.runs.reading import RecordedRun
from headlens.tables.every_table import TABLES

_RELATIONS = 6  # lines of a card
_KEYS = ["model", "stack", "layer", "head"]
_OF_TOKENS = {"pair"}  # metrics with a figure that are of tokens whatever the level


def classification_facts(run: RecordedRun) -> HeadFacts:
    """Roles, measures, relations, offsets, and attention on a sentence."""
    heads = run.tables.get("heads", pd.DataFrame(columns=[*_KEYS, "role", "roles"]))
    codes = np.array([FAMILIES.index(name) for name in families(heads["role"])], np.float64)
    roled = heads.assign(code=codes, letters=[short(role).replace("\n", "") for role in heads["role"]])
    about = "The strongest role of the head, if it holds one; the letters stand for the offset or the relation."
    categories = {"no role" if name == NONE else name: "" if name == NONE else COLOURS[name] for name in FAMILIES}
    series = [HeadSeries("role", "role", about, roled, "code", categories=categories, letters="letters")]
    for column in (column for metric in declarations_of(run) for column in metric.columns):
        if column.title and column.name in heads:
            _, *bounds = column.names
            known = (bounds[0], bounds[1]) if bounds and set(bounds) <= set(heads) else None
            declared = (column.name, column.title, column.about)
            # Offsets with their sign, empty where there is none.
            places = float_column(heads, column.offset)
            rows = heads.assign(lead=[f"{n:+.0f}".replace("-", "−") if np.isfinite(n) else "" for n in places])
            lead = "lead" if column.offset else ""
            levels = {words: name for name, words in baselines_of(column).items()}
            levels |= {"uniform attention": "".join(column.null_names)}
            series.append(
                HeadSeries(
                    *(*declared, rows, column.name, known),
                    unit=column.unit,
                    lead=lead,
                    high=column.high,
                    count=column.instances,
                    beside={name: level for name, level in levels.items() if level},
                )
            )
    spelled = heads["roles"].astype(object).where(heads["roles"].notna() & (heads["roles"] != ""), "none")
    texts = [HeadWords("Roles", heads[_KEYS].assign(text=spelled.astype(str)))]
    if "syntax" in run.tables:
        syntax = run.tables["syntax"].assign(gain=syntax_figure.gain(run.tables["syntax"]))
        syntax["even_gain"] = float_column(syntax, "accuracy_null") - float_column(syntax, "baseline")
        known_gains = syntax[np.isfinite(syntax["gain"])]
        if len(known_gains):
            best = known_gains.loc[known_gains.groupby(_KEYS, sort=False)["gain"].idxmax()]
            about = "Accuracy on the head's best relation, minus that of the best fixed offset for this relation."
            title = "best relation, difference from the fixed offset"
            beside = {"uniform attention": "even_gain"}
            series.append(
                HeadSeries("margin", title, about, best, "gain", diverging=True, unit="points", beside=beside)
            )
        texts.append(
            HeadWords(
                "Relations by how far the head is above the best fixed offset, or below it", _relations(known_gains)
            )
        )
    if "relevance" in run.tables:
        series += relevance_series(run.tables["relevance"])
        texts += layer_words(run.tables["relevance"])
    series += circuit_report.circuit_series(run.tables)
    texts += circuit_report.circuit_words(run.tables)
    shares = []
    if "positions" in run.tables:
        offsets = run.tables["positions"].rename(columns={"offset": "category"})
        shares.append(HeadShares("Position of the most attended token, special tokens left out", offsets))
    return HeadFacts(series, texts, shares, read_maps(run, str))


def shown_attention(run: RecordedRun) -> AttentionView | None:
    """Returns the view of the sentences that the run keeps, of each of its models."""
    maps = read_maps(run, str)
    models = list(dict.fromkeys(sentence.model for sentence in maps))
    beside = [replace(sentence, model=str(sentence.sentence), state=models.index(sentence.model)) for sentence in maps]
    return AttentionView(models, beside, len(models) == 1) if maps else None


def _relations(syntax: pd.DataFrame) -> pd.DataFrame:
    """The relations that a head follows best, in words: rows of syntax.csv with the `gain` above the offset."""
    known = syntax[np.isfinite(float_column(syntax, "n"))].sort_values("gain", ascending=False, kind="stable")
    known = known.groupby(_KEYS, sort=False).head(_RELATIONS)
    texts = [
        f"{row['relation']} {ARROWS.get(str(row['direction']), row['direction'])} {share_text(row['accuracy'])} % "
        f"[{share_text(row['ci_low'])}, {share_text(row['ci_high'])}] of {int(row['n']):,} cases, "
        f"a fixed offset {share_text(row['baseline'])} %" + (", significant" if sure else "")
        for row, sure in zip(known.to_dict("records"), is_marked(known["significant"]), strict=True)
    ]
    return known[_KEYS].assign(text=texts)


def classify_figures(
    tables: Mapping[str, pd.DataFrame],
    min_instances: int = syntax_figure.FEWEST,
    declarations: Sequence[MetricDeclaration] | None = None,
    maps: Sequence[SentenceMap] = (),
    steps: Mapping[str, int] | None = None,
) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: as far as there `heads`, `positions`, `relation_offsets`, `syntax`, `similarity`, `smoothness`,
            `relevance`, those of probes: rows of the CSV files, of one model or several.
        min_instances: relations with fewer instances are marked.
        declarations: of the metrics that have a heatmap; None for those that are registered.
        maps: attention on some sentences that the run keeps.
        steps: of checkpoints of one training, by model; all but the figure over the training are of the first and
            the last of them.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if steps:
        if "heads" in tables:
            figure = roles_over_training.roles_over_training(tables["heads"], steps, tables.get("probes"))
            yield roles_over_training.NAME, figure
        tables = rows_of_models(tables, first_and_last(steps))
    yield from _of_models(tables, min_instances, declarations, maps)


def _of_metrics(declarations: Sequence[MetricDeclaration], heads: pd.DataFrame) -> Figures:
    """A figure of every metric that has one."""
    for metric in declarations:
        if metric.title:
            with between_tokens() if metric.name in _OF_TOKENS else nullcontext():
                figure = metric.figure(heads)
            yield metric.name, figure


def _of_models(
    tables: Mapping[str, pd.DataFrame],
    min_instances: int,
    declarations: Sequence[MetricDeclaration] | None,
    maps: Sequence[SentenceMap],
) -> Figures:
    """The figures in which models stand side by side."""
    heads = tables.get("heads", pd.DataFrame())
    even = even_stacks(heads)
    if len(heads):
        yield "functions", function_map(heads)
        yield from _of_metrics(declarations or registered_declarations(), heads)
        yield "positions", position_figure.positional_map(heads)
        yield from rare_word_figures(heads, maps)
    if "positions" in tables:
        yield "offsets", position_figure.offset_profile(tables["positions"], even)
    syntax = without_even(tables["syntax"], even) if "syntax" in tables else pd.DataFrame()
    if "relation_offsets" in tables:
        yield from position_figure.relation_offset_figures(tables["relation_offsets"], syntax, even)
    if "syntax" in tables:
        yield "best_heads", syntax_figure.best_heads_figure(syntax, min_instances, even)
        models = [rows for _, rows in syntax.groupby("model", sort=False)]
        # A model in which no head is above the offset has no figure, and takes no number.
        models = [rows for rows in models if (syntax_figure.gain(rows) > 0).any()] or models[:1]
        for number, rows in enumerate(models, 1):
            yield "syntax" if len(models) == 1 else f"syntax_{number}", syntax_figure.syntactic_map(rows, even)
    if len(heads) and "similarity" in tables:
        with between_tokens():
            figure = similarity_figure.similarity_map(tables["similarity"], heads)
        yield "similarity", figure
    if len(heads) and "relevance" in tables:
        yield "relevance_roles", relevance_roles(heads, tables["relevance"])
        yield "confidence_relevance", confidence_against_relevance(heads, tables["relevance"])
    if "probes" in tables:
        yield "probes", probe_map(tables["probes"])
    yield from circuit_report.circuit_figures(tables)
    if layer_smoothness.NAME in tables:
        yield layer_smoothness.NAME, layer_smoothness.smoothness_figure(tables[layer_smoothness.NAME])
    yield from relevance_figures(tables)


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    makers = (
        *overviews.FIRST,
        probe_overview,
        layer_smoothness.smoothness_overview,
        overviews.roles_held,
        largest_heads_table,
        top_heads,
    )
    tables = [*(make(runs) for make in makers), *circuit_report.circuit_overviews(runs)]
    return [table for table in tables if table.rows]


def _declared(report: CommandReport, run: RecordedRun) -> CommandReport:
    """Returns the report with the columns of the run's metrics, and with the captions of their figures."""
    declarations = declarations_of(run)
    drawn = [declaration for declaration in declarations if declaration.title]
    panels = [(metric.name, column) for metric in drawn for column in metric.columns if column.panel]
    heads = report.tables["heads"]
    return replace(
        report,
        tables={**report.tables, "heads": replace(heads, columns=(*measured_columns(declarations), *heads.columns))},
        captions={**report.captions, **{metric.name: Caption(metric.heading, metric.caption) for metric in drawn}},
        sources={
            **report.sources,
            **{metric.name: ("heads",) for metric in drawn},
            roles_over_training.NAME: ("heads", *["probes"] * ("probes" in run.tables)),
        },
        columns={
            **{column.name: "" for column in measured_columns(declarations)},
            **{name: figure for figure, column in panels for name in column.names},
            **report.columns,
        },
    )


_TIES = "Of tokens that tie the first one counts, of heads that attend uniformly of all tokens (see the notes)."
_CAPTIONS = {
    **RELEVANCE_CAPTIONS,
    "relevance_roles": Caption(
        "Relevance, confidence and roles",
        "Three maps of the same heads, each at the same place in all of them, layer 0 at the bottom: on the left the "
        "head's share of its layer's contribution to the output (blue: same direction as the layer, red: against it), "
        "in the middle the mean largest attention weight, separators left out, on the right the strongest role. A "
        "head that is dark in the first map, yellow in the second and coloured in the third has a role, is confident, "
        "and contributes to the output. Whether a share differs from 0 is shown in the map of relevance below.",
    ),
    "confidence_relevance": Caption(
        "Confidence against relevance",
        "Every dot is a head: its confidence, and its share of its layer's relevance, coloured by its "
        "role. The most relevant heads are named by layer and head, the dashed line is an equal share for every "
        "head. Spearman's correlation, within layers, is near 1 where confident heads are the relevant ones. Triangles "
        "mark values beyond the axis.",
    ),
    roles_over_training.NAME: roles_over_training.CAPTION,
    "functions": Caption(
        "Roles of attention heads",
        "Every head by its strongest role; layer 0 is at the bottom. The letters give the offset of a positional head "
        "or the relation of a syntactic one; ↑ means that a dependent attends to its governor, ↓ that a governor "
        "attends to its dependent. Grey heads have no role. A head may have more roles than the one shown: see "
        "heads.csv.",
    ),
    "positions": Caption(
        "Most frequent offset",
        "The number is the most frequent distance, in tokens, from a token to the one it attends to most (−1: the "
        "previous token, 0: the token itself); the colour is the share of tokens at that distance, above each map that "
        f"of uniform attention. Special tokens are left out. {_TIES}",
    ),
    "offsets": Caption(
        "All offsets",
        "One line per head, numbered by layer and head: the share of its tokens whose most attended token, special "
        "tokens left out, is at each distance; below them, what uniform attention has, unless layers differ in what "
        "they see. The cells at the ends add up everything farther than 8 tokens: in long sentences they are bright "
        "for heads without any preference, too. A single bright cell in between is a fixed distance at which a head "
        "points where it does not point at special tokens: a sink may have one, too, of the little weight that is "
        "left. Without one, no fixed distance says where a head points. Dotted: later tokens, which causal heads "
        f"cannot see. {_TIES}",
    ),
    "rare_words": Caption(
        "Attention to rare words",
        "Attention of the head that points most often at the least frequent word of a sentence, on the sentences "
        "stored with the run, at word level (weights to a word are summed over its subwords, weights from it "
        "averaged). Framed and in bold: the "
        "least frequent word; a dot marks the word that each word attends to most, special tokens left out, and the "
        "number of words that point at the framed one is printed above each "
        "map. A rare-word head has its dots in the frame. Its share of all words read is in the title, with that of "
        "uniform attention, which it has to be above; where no head is, nothing is drawn.",
    ),
    "relation_offsets": Caption(
        "Relative positions of relations",
        "How far the governor of a dependent (its head in the tree) is from it, in words, for the relations with the "
        "most cases (n): the share of cases at each distance; everything farther than 8 words is hatched. Dark, "
        "with a blue number: the most frequent distance, which is the fixed offset that attention heads are "
        "compared with. "
        "Dashed, with layer, head and number: the most accurate head from dependent to governor; a syntactic one is "
        "above the blue number by the margin (0.10 by default), and significantly so. The histogram from governor to "
        "dependent is the mirror image. Dotted: later words, which causal heads cannot see; none is named where they "
        "find no governor for that reason. With several models, which read the same trees, the heads of one are "
        "shown, which the title names.",
    ),
    "best_heads": Caption(
        "Best head for every relation",
        "The accuracy of the most accurate head of every dependency relation and direction with its 95 % interval "
        "(dot, line), ↑ from dependent to head and ↓ from head to dependent, and that of always choosing the most "
        "frequent offset (black stroke). Dark: above the offset by the margin, significant after correction for all "
        "heads, relations and directions; the others are pale, and "
        "grey where the other word mostly stands to the right of a causal head, which cannot look there. A dagger: "
        "too few instances to call a head syntactic. A "
        "relation excludes the cases of a subtype that is tested separately, such as nmod:poss. The interval is for "
        "this head alone and does not account for its selection as the best of many.",
    ),
    "syntax": Caption(
        "Relations compared with the best fixed offset",
        "How much more often than the best fixed offset each head points at the right word, by relation and direction "
        "(↑ from dependent to head, ↓ from head to dependent); white is not above the offset. Frames mark heads above "
        "the margin that are significant after Holm's correction for all heads, relations and directions. On the "
        "right: the best head, its accuracy and, in brackets, the accuracy of the "
        "offset. Relations that no head follows better "
        "than an offset are left out.",
    ),
    "similarity": Caption(
        "How alike heads attend",
        "Left: the Jensen–Shannon distance between all pairs of heads, in the order of a hierarchical clustering; dark "
        "blocks are heads that attend alike, white lines divide clusters. Where all heads are closer than "
        f"{similarity_figure.DIVIDED}, a seventieth of the largest divergence, none are drawn. "
        "Right: the same distances projected to two "
        "dimensions as faithfully as possible; the colour is the role, numbers are layer and head where there is room.",
    ),
    "probes": PROBE_CAPTION,
    **circuit_report.CIRCUIT_CAPTIONS,
    layer_smoothness.NAME: layer_smoothness.SMOOTHNESS_CAPTION,
}

REPORT = CommandReport(
    "classify",
    tables=TABLES["classify"],
    needed=("heads", "positions"),
    figures=lambda run: named_after(
        run.corpus_name,
        classify_figures(
            run.tables,
            overviews.fewest(run),
            declarations_of(run),
            read_maps(run, str),
            recorded_steps(run.model_facts),
        ),
        run.mask_name,
    ),
    captions=_CAPTIONS,
    sources={
        **dict.fromkeys(("functions", "relevance_roles", "confidence_relevance", "positions"), ("heads",)),
        **dict.fromkeys(("best_heads", "syntax"), ("syntax",)),
        "offsets": ("positions",),
        "relation_offsets": ("relation_offsets", "syntax"),
        "rare_words": ("heads",),
        "probes": ("probes",),
        **circuit_report.CIRCUIT_SOURCES,
        roles_over_training.NAME: ("heads",),
        "similarity": ("similarity", "heads"),
        layer_smoothness.NAME: (layer_smoothness.NAME,),
        **RELEVANCE_SOURCES,
    },
    columns={
        **dict.fromkeys(("positional_offset", "positional_share"), "positions"),
        **dict.fromkeys(("similarity_x", "similarity_y", "similarity_cluster", "similarity_leaf"), "similarity"),
        **dict.fromkeys(("nearest", "nearest_score", "roles_by_weight", "role_stability"), ""),
    },
    overviews=_overviews,
    heads=classification_facts,
    attention=shown_attention,
    findings=recorded_findings,
    first={"similarity": "js_distance"},
    declared=_declared,
)  # fmt: skip
