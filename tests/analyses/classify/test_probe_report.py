"""Sentences, table and figure of roles on prompts of random tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.probe_report import head_probe_records, probe_map, probe_sentences
from headlens.plots.style import named_after
from headlens.tables.classify_tables import PROBES


def probes(held: int, probe: str = "induction", model: str = "m") -> pd.DataFrame:
    """Four heads, of which the first ones pass the probe, the last of these farthest above the controls."""
    rows = []
    for head in range(4):
        score = 0.5 + 0.1 * head if head < held else 0.03
        row: dict[str, Any] = dict.fromkeys(PROBES.names, np.nan)
        row |= {"model": model, "stack": "decoder", "layer": head // 2, "head": head % 2, "probe": probe, "n": 20}
        row |= {"score": score, "ci_low": score - 0.01, "ci_high": score + 0.01, "control": 0.02, "chance": 0.02}
        row |= {"second_score": score - 0.01, "second_control": 0.015, "above": score - 0.025, "most": 0.9}
        rows.append(row | {"p_value": 0.001, "p_holm": 0.004, "holds": head < held})
    return pd.DataFrame(rows)


def test_a_sentence_names_the_head_farthest_above_both_controls() -> None:
    assert probe_sentences(probes(2)) == [
        "m: 2 heads of 4 pass the probe induction on prompts made for it, most of all decoder.0.1: 60.0 % of its "
        "weight to what followed earlier copies of the same token (2.0 % without copies; 59.0 % against 1.5 % without "
        "the gaps between them)."
    ]
    assert probe_sentences(probes(1))[0].startswith(
        "m: 1 head of 4 passes the probe induction on prompts made for it, most of all decoder.0.0"
    )
    none = probe_sentences(probes(0))[0]
    assert none.startswith(
        "m: none of 4 heads passes the probe induction on prompts made for it; nearest is decoder.0.0 with 3.0 % of its"
    )
    of_others = probes(2, "previous").assign(weight=0.25)
    assert (
        "decoder.0.1: 60.0 % of its weight on tokens other than itself and the first to the previous token ("
        in (probe_sentences(of_others)[0])
    )
    assert probe_sentences(of_others)[0].endswith("1.5 % two tokens back), and 25.0 % of all its weight.")
    assert "of all its weight" not in probe_sentences(of_others.assign(weight=of_others["score"]))[0]
    # Above most without passing the probe, as it is not significant.
    odd = probes(1).assign(above=[0.2, 0.9, 0.0, 0.0])
    assert "most of all decoder.0.0" in probe_sentences(odd)[0]


def test_the_table_has_the_best_heads_of_each_probe() -> None:
    both = pd.concat([probes(3), probes(0, "sink"), probes(1, model="other")])
    records = head_probe_records(both)
    assert [(r["model"], r["probe"], r["head"], r["holds"]) for r in records[:4]] == [
        ("m", "induction", "decoder.1.0", "yes"),
        ("m", "induction", "decoder.0.1", "yes"),
        ("m", "induction", "decoder.0.0", "yes"),
        ("m", "sink", "decoder.0.0", "no"),
    ]
    assert len(records) == 9


@pytest.mark.parametrize("models", [("m",), ("m", "other")])
def test_a_map_for_each_probe_that_names_no_corpus(models: tuple[str, ...]) -> None:
    table = pd.concat([probes(2, p, m) for m in models for p in ("induction", "sink")])
    (drawn,) = named_after("a corpus", iter([probe_map(table)]))
    assert drawn is not None
    level = f" even attention: {table['control'].iloc[-1]:.2f}"
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in drawn.axes if axes.get_title(loc="left")]
    assert titles == (
        ["induction, decoder", f"sink, decoder{level}"]
        if len(models) == 1
        else [f"{m}: {p}, decoder" + level * (p == "sink") for m in models for p in ("induction", "sink")]
    )
    assert "corpus" not in drawn.texts[0].get_text()
    assert probe_map(table.iloc[:0]) is None
