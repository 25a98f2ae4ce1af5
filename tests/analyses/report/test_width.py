"""Figures for a column: narrow enough or known to be wider, and nothing cut off or written over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations, product
from threading import Thread

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, gate_tables
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from shared_fixtures import PRINTED_DPI
from tiers import rest_slow

from headlens.analyses.ablate.report import ablation_figures
from headlens.analyses.classify.report import classify_figures
from headlens.analyses.classify.role_map import function_map
from headlens.analyses.classify.syntax_figure import syntactic_map
from headlens.analyses.masks.report import mask_figures
from headlens.analyses.prune.report import gate_figures
from headlens.analyses.sparsefinder.figures import LOOKS, sparsefinder_figures
from headlens.analyses.training.report import training_curve
from headlens.attention_masks.patterns import parse_pattern
from headlens.pages.command_report import Figures
from headlens.plots.style import COLUMN_WIDTH, FULL_WIDTH, drawn_for, page_width
from headlens.tables.sparsefinder_tables import GOLD

Make = Callable[..., pd.DataFrame]
Shapes = dict[str, list[int]]
Change = Callable[[pd.DataFrame], pd.DataFrame]
ENCODER: Shapes = {"encoder": [12] * 6}
TRANSLATION: Shapes = {"encoder": [8] * 3, "decoder": [8] * 3, "cross": [8] * 3}
STRATEGIES = ("ranked", "importance", "importance-steps", "greedy", "beam", "random")
# the commands, and which of their figures hold too much for a column
KINDS: dict[str, set[str]] = {
    "encoder": set(),
    "translation": {"mass", "similarity"},
    "two encoders": {"similarity"},
    "ablate": set(),
    "ablate two": {"side_by_side"},
    "prune": {"gates_encoder", "gates_decoder", "gates_cross"},
    "masks": set(),
    "sparsefinder": {"examples"},
    "train": set(),
}


def pairs(heads: pd.DataFrame) -> pd.DataFrame:
    found = []
    for (model, stack), own in heads.groupby(["model", "stack"], sort=False):
        keys = list(own[["layer", "head"]].itertuples(index=False, name=None))
        rows = [(*a, *b, 0.1 + 0.01 * (sum(a) + sum(b))) for a, b in combinations(keys, 2)]
        frame = pd.DataFrame(rows, columns=["layer", "head", "other_layer", "other_head", "js_distance"])
        found.append(frame.assign(model=model, stack=stack))
    return pd.concat(found, ignore_index=True)


def masks() -> pd.DataFrame:
    """Patterns, graphs in two ranges of layers, a grid of degrees and learned ones, on two tasks."""
    degrees = list(product((0, 2), (0, 3), (1, 2, 4)))
    cases = [("full", "all", None, 0.0), ("star", "all", None, 0.9), ("window:3|global:1", "all", None, 0.8)]
    cases += [(f"graph:{kind}", layers, None, 0.7) for kind in ("syntax", "random") for layers in ("all", "last:3")]
    cases += [(f"bigbird:t={g},k={r},w={w}", "all", (g, r, w), 0.8 - 0.03 * (g + r + w)) for g, r, w in degrees]
    cases += [(f"degrees:mu={mu:g}", "all", None, 0.6 + 0.05 * mu) for mu in (0.1, 1)]
    rows = []
    for task, (number, (pattern, layers, degree, sparsity)) in product(("sst2", "rte"), enumerate(cases)):
        about = {"model": "m", "task": task, "metric": "accuracy", "pattern": pattern, "layers": layers}
        names = ("degree_global", "degree_random", "degree_neighbour")
        about |= dict(zip(names, degree or (None,) * 3, strict=True))
        value = 0.5 + 0.01 * number
        values = {"value": value, "ci_low": value - 0.1, "ci_high": value + 0.1, "sparsity": sparsity}
        values |= {"sparsity_texts": sparsity, "seed": 0}
        rows += [about | values | {"control": control} for control in ("kept", "dropped")]
    return pd.DataFrame(rows)


def mask_tables() -> Mapping[str, pd.DataFrame]:
    patterns = ("strided", "fixed", "longformer", "window:3|global:1")
    sparsity = [(name, name, diagonal, 16, 0.8) for name in patterns for diagonal in (True, False)]
    learned = [
        (
            "m",
            f"degrees:mu={mu:g}",
            "all",
            True,
            layer,
            head,
            degree,
            degree == (layer + head) % 4,
            0.7 if degree == (layer + head) % 4 else 0.1,
        )
        for mu, layer, head, degree in product((0.1, 1, 10), range(6), range(4), range(5))
    ]
    names = ["model", "pattern", "layers", "diagonal", "layer", "head", "degree", "chosen", "p"]
    assert all(parse_pattern(name) for name in patterns)
    return {
        "sparsity": pd.DataFrame(sparsity, columns=["mask", "pattern", "diagonal", "n", "sparsity"]),
        "masks": masks(),
        "degrees": pd.DataFrame(learned, columns=names),
    }


def sparse_tables(make_heads: Make) -> Mapping[str, pd.DataFrame]:
    heads = make_heads().assign(sparsity=0.8, area_distance=0.7, information=lambda t: 0.01 * t.index)
    points = [
        (method, 0.2 * step, 1 - 0.02 * number - 0.1 * step, 30 - number - step)
        for number, method in enumerate(LOOKS)
        for step in range(4)
    ]
    frame = pd.DataFrame([*points, (GOLD, 0.85, 1.0, 33)], columns=["method", "sparsity", "recall", "value"])
    frame = frame.assign(model="demo", stack="encoder", head=np.nan, metric="bleu", task="translation", on_curve=True)
    frame["task_sparsity"] = 0.9 * frame["sparsity"]
    tags = [f"tag{n}" for n in range(17)]
    keys = heads[["model", "stack", "layer", "head"]].tail(3)
    rows = [
        (*key, cluster, side, tag, 5, 1 / 17)
        for key, cluster, side, tag in product(
            keys.itertuples(index=False, name=None), range(8), ("query", "key"), tags
        )
    ]
    names = [*keys.columns, "cluster", "side", "tag", "count", "share"]
    tokens = [f"token{n}" for n in range(12)]
    maps = [
        ("demo", "encoder", 0, 1, i, j, tokens[i], tokens[j], 1 / 12, 1.0, 1 / 12)
        for i, j in product(range(12), repeat=2)
    ]
    columns = ["model", "stack", "layer", "head", "query", "key", "query_token", "key_token", "weight", "predicted"]
    examples = pd.DataFrame(maps, columns=[*columns, "restricted"])
    return {
        "pareto": frame.assign(ci_low=frame["value"] - 1, ci_high=frame["value"] + 1),
        "heads": heads,
        "clusters": pd.DataFrame(rows, columns=names),
        "examples": examples.assign(method="distance", value_of_parameter=1.5, window=3),
    }


@pytest.fixture
def drawings(
    make_heads: Make,
    make_relevance: Make,
    make_positions: Make,
    make_syntax: Make,
    make_ablation: Make,
    make_pruning: Make,
) -> Callable[[str], Figures]:
    """What a report draws of runs of a command, from made tables."""

    def classify(shapes: Shapes, *models: str, change: Change = lambda table: table) -> Figures:
        def of(make: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
            return pd.concat([make(model) for model in models], ignore_index=True)

        relevance = of(lambda model: make_relevance(model, shapes, rules=("epsilon", "taylor")))
        heads = of(lambda model: make_heads(model, shapes))
        heads["relevance"] = relevance.loc[relevance["rule"] == "epsilon", "relevance"].to_numpy()
        heads["nearest"] = "syntactic(obl:unmarked dep->head)"
        tables = {"heads": heads, "relevance": relevance, "similarity": pairs(heads)}
        tables |= {"positions": of(lambda model: make_positions(model, shapes))}
        tables |= {"syntax": of(lambda model: make_syntax(model, shapes))}
        return classify_figures({name: change(table) for name, table in tables.items()})

    def ablate(*models: str) -> Figures:
        ablation = [make_ablation(model, mode=mode) for model in models for mode in ("zero", "keep-only")]
        pruning = [make_pruning(model, STRATEGIES) for model in models]
        return ablation_figures({"ablation": pd.concat(ablation), "pruning": pd.concat(pruning, ignore_index=True)})

    def train() -> Figures:
        log = pd.DataFrame({"step": range(10, 100, 10), "loss": np.linspace(5, 2, 9)})
        yield "training", training_curve(log, pd.DataFrame({"step": [50, 90], "loss": [3.3, 2.2]}))

    made = {
        "encoder": lambda: classify(ENCODER, "demo"),
        "translation": lambda: classify(TRANSLATION, "opus-mt-de-en"),
        "two encoders": lambda: classify({"encoder": [4] * 2}, "bert-base-uncased", "albert-base-v2"),
        "ablate": lambda: ablate("demo"),
        "ablate two": lambda: ablate("bert-base-uncased", "albert-base-v2"),
        "prune": lambda: gate_figures(gate_tables(Made(penalties=(0.005, 0.02, 0.1), steps=(0, 500, 1000)))),
        "masks": lambda: mask_figures(mask_tables()),
        "sparsefinder": lambda: sparsefinder_figures(sparse_tables(make_heads)),
        "train": train,
        "long names": lambda: classify({"encoder": [12] * 2}, "an-organisation/a-model-whose-name-goes-on-and-on-" * 2),
        "one head": lambda: classify({"encoder": [1]}, "m"),
        "many heads": lambda: classify({"encoder": [16] * 24}, "bert-large"),
        "negative": lambda: classify({"encoder": [4] * 2}, "m", change=negative),
        "absent": lambda: classify({"encoder": [4] * 2}, "m", change=absent),
    }
    return lambda name: made[name]()


def negative(table: pd.DataFrame) -> pd.DataFrame:
    """The same with values below 0, where they may be."""
    shares = {"relevance", "raw", "ci_low", "ci_high", "similarity_x", "similarity_y"} & set(table)
    return table.assign(**{name: -10 * table[name] for name in shares})


def absent(table: pd.DataFrame) -> pd.DataFrame:
    """The same without every other value."""
    keys = {"layer", "head", "other_layer", "other_head", "n", "offset", "similarity_leaf", "similarity_cluster"}
    numbers = [name for name in table.select_dtypes("number") if name not in keys]
    return table.assign(**{name: table[name].where(np.arange(len(table)) % 2 == 0) for name in numbers})


def figures(drawn: Figures) -> Iterator[tuple[str, Figure]]:
    for name, made in drawn:
        if made is not None:
            yield name, made


def written(figure: Figure) -> list[tuple[str, Bbox]]:
    """Titles, labels, ticks and legends with their places; what is written among data is left out."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend() is not None)]
    found = [*figure.texts, *(text for legend in legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]  # type: ignore[attr-defined]
        # the ticks within the limits
        ticks = [tick for axis in (axes.xaxis, axes.yaxis) for tick in axis._update_ticks()]  # type: ignore[attr-defined]
        found += [label for tick in ticks for label in (tick.label1, tick.label2)]
    shown = [text for text in found if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in shown]


def overlaps(first: Bbox, second: Bbox, slack: float = 2.0) -> bool:
    wide = min(first.x1, second.x1) - max(first.x0, second.x0)
    high = min(first.y1, second.y1) - max(first.y0, second.y0)
    return wide > slack and high > slack


def faults(figure: Figure) -> list[tuple[str, ...]]:
    """What is cut off, and pairs of what is written over each other."""
    figure.dpi = PRINTED_DPI  # as it is written: at other resolutions hinted letters have other widths
    figure.draw_without_rendering()
    found = written(figure)
    inside = [(text, box.x0 >= -1 and box.y0 >= -1 and all(box.max <= figure.bbox.max + 1)) for text, box in found]
    pairs = [
        (a, b) for (a, p), (b, q) in combinations(found, 2) if overlaps(p, q, PRINTED_DPI / 40)
    ]  # a fortieth of an inch
    return [*((text,) for text, is_inside in inside if not is_inside), *pairs]


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize(
    "kind", rest_slow([*KINDS, "long names", "one head", "many heads", "negative", "absent"], ["ablate"])
)
def test_nothing_is_cut_off_or_written_over(drawings: Callable[[str], Figures], kind: str) -> None:
    assert {name: found for name, figure in figures(drawings(kind)) if (found := faults(figure))} == {}


@pytest.mark.parametrize("kind", rest_slow(KINDS, ["train"]))
def test_figures_fit_a_column_or_are_known_not_to(drawings: Callable[[str], Figures], kind: str) -> None:
    wide = set()
    with drawn_for("column"):
        for name, figure in figures(drawings(kind)):
            if figure.get_figwidth() > COLUMN_WIDTH + 0.01:
                wide.add(name)
                continue
            assert faults(figure) == [], name
            small = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_fontsize() < 4.5]
            assert not small, name
    assert wide == KINDS[kind]


def test_what_holds_too_much_for_a_column_is_drawn_as_for_a_page(make_heads: Make, make_syntax: Make) -> None:
    heads = make_heads("wide", {"encoder": [80] * 2})
    tables = make_syntax("a", {"encoder": [80] * 2})
    for draw in (lambda: function_map(heads), lambda: syntactic_map(tables)):
        full = draw()
        with drawn_for("column"):
            column = draw()
        assert full is not None
        assert column is not None
        assert tuple(column.get_size_inches()) == tuple(full.get_size_inches())
        assert [text.get_fontsize() for text in column.texts] == [text.get_fontsize() for text in full.texts]


def test_arrows_keep_their_direction_where_words_run_upwards(make_heads: Make) -> None:
    role = "syntactic(nsubj head->dep)"
    with drawn_for("column"):
        figure = function_map(make_heads().assign(role=role))
    assert figure is not None
    texts = figure.axes[0].texts
    assert {(text.get_text(), text.get_rotation()) for text in texts} == {("nsubj", 90.0), ("↓", 0.0)}
    assert len(texts) == 2 * 72


def test_the_width_holds_for_its_block_and_thread_alone() -> None:
    seen = []
    with suppress(RuntimeError), drawn_for("column"):
        thread = Thread(target=lambda: seen.append(page_width()))
        thread.start()
        thread.join()
        seen.append(page_width())
        with drawn_for("full"):
            seen.append(page_width())
        seen.append(page_width(COLUMN_WIDTH + 1))
        raise RuntimeError("broken")
    assert [*seen, page_width()] == [FULL_WIDTH, COLUMN_WIDTH, FULL_WIDTH, FULL_WIDTH, FULL_WIDTH]
