"""The best rare-words head on example sentences: words, the rarest one, and who points at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from saved import build
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.analyses.classify.rare_word_figure import rare_word_figures, word_map
from headlens.corpora.frequency import make_frequency
from headlens.corpora.sources import NamedCorpus, open_corpus
from headlens.errors import InputError
from headlens.heads import Head
from headlens.maps.sentence_attention import collect_attention, shown_examples
from headlens.maps.stored_maps import read_maps, write_maps
from headlens.models.loading import LoadedModel, load
from headlens.pages.head_cards import SentenceMap, TokenGroups
from headlens.plots.style import VERMILION, drawn_for
from headlens.roles.head_roles import Frequencies, classify_heads
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun

Make = Callable[..., pd.DataFrame]
HEAD = Head("encoder", 0, 1)
# [CLS], an okapi in two pieces, sleeps, [SEP]
GROUPS = TokenGroups([0, 1, 1, 2, 3], ["[CLS]", "okapi", "sleeps", "[SEP]"], [True, False, False, False, True], [1])
TOKENS = ["[CLS]", "ok", "##api", "sleeps", "[SEP]"]


def kept(rows: list[list[float]], **settings: object) -> SentenceMap:
    weights = np.zeros((1, 2, 5, 5))
    weights[0, 1] = rows
    made = SentenceMap("demo", "encoder", TOKENS, TOKENS, weights, query_groups=GROUPS, key_groups=GROUPS)
    return replace(made, **settings)  # type: ignore[arg-type]


ROWS = [
    [1.0, 0.0, 0.0, 0.0, 0.0],
    [0.5, 0.1, 0.2, 0.2, 0.0],
    [0.1, 0.3, 0.1, 0.4, 0.1],
    [0.6, 0.1, 0.1, 0.15, 0.05],
    [0.0, 0.0, 0.0, 1.0, 0.0],
]


def heads(make_heads: Make) -> pd.DataFrame:
    return make_heads(shapes={"encoder": [2]}).assign(rare_top1=[0.3, 0.6])


def test_pieces_are_words_and_special_tokens_are_left_out() -> None:
    found = word_map(kept(ROWS), HEAD)
    assert found is not None
    assert found.queries == found.keys == ["okapi", "sleeps"]
    # To a word the sum over its pieces, from it the mean.
    np.testing.assert_allclose(found.weights, [[0.35, 0.3], [0.2, 0.15]])
    assert found.rarest == [0]
    assert found.pointed.tolist() == [0, 0]
    assert found.hits == 2


def test_a_sentence_without_a_rarest_word_or_head_is_left_out(make_heads: Make) -> None:
    for made in (
        kept(ROWS, key_groups=replace(GROUPS, rarest=[])),
        kept(ROWS, key_groups=None),
        kept(ROWS, weights=np.full((1, 2, 5, 5), np.nan)),
        kept(ROWS, weights=np.zeros((1, 1, 5, 5))),
        kept(ROWS, model="other"),
        kept(ROWS, stack="cross"),
    ):
        assert list(rare_word_figures(heads(make_heads), [made])) == []
    assert list(rare_word_figures(heads(make_heads).assign(rare_top1=np.nan), [kept(ROWS)])) == []


@pytest.mark.parametrize("width", ["full", "column"])
def test_the_rarest_word_is_framed_and_dots_are_where_words_point(make_heads: Make, width: str) -> None:
    with drawn_for(width):
        ((name, figure),) = rare_word_figures(heads(make_heads), [kept(ROWS), kept(ROWS)])
    assert name == "rare_words"
    assert figure is not None
    title = " ".join(figure.get_suptitle().split())
    assert title == "Attention to rare words: encoder.0.1 of demo 60% at the rarest word. No head holds the role"
    first, second, bar = figure.axes
    assert bar.get_ylabel().replace("\n", " ") == "attention weight"
    assert first.get_title(loc="left") == second.get_title(loc="left")
    assert first.get_title(loc="left").replace("\n", " ") == "2 of 2 words point at the rarest"
    (box,) = [patch for patch in first.patches if isinstance(patch, Rectangle)]
    assert (box.get_x(), box.get_width(), box.get_height()) == (0, 1, 2)
    mesh, dots = first.collections
    np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), [0.35, 0.3, 0.2, 0.15])
    assert np.asarray(dots.get_offsets()).tolist() == [[0.5, 0.5], [0.5, 1.5]]
    labels = {text.get_text(): to_hex(text.get_color()) for text in first.get_xticklabels()}
    assert labels["okapi"] == VERMILION.lower() != labels["sleeps"]


def test_uniform_attention_is_told_and_a_head_that_is_not_above_it_is_not_drawn(make_heads: Make) -> None:
    rows = heads(make_heads)
    ((_, figure),) = rare_word_figures(rows.assign(rare_top1_null=0.34, roles=["", "rare"]), [kept(ROWS)])
    assert figure is not None
    assert figure.get_suptitle().endswith("60% at the rarest word; uniform attention 34%")
    assert list(rare_word_figures(rows.assign(rare_top1_null=0.6), [kept(ROWS)])) == []
    # What an interval does not show is not told.
    ((_, figure),) = rare_word_figures(rows.assign(rare_top1_null=0.34, rare_top1_ci_low=0.3), [kept(ROWS)])
    assert figure is not None
    assert "60% at the rarest word; not shown to be above uniform attention (34%)" in figure.get_suptitle()


def test_a_higher_head_that_attends_evenly_is_told_beside_the_one_that_is_drawn(make_heads: Make) -> None:
    """Tables of measures name it as the highest."""
    rows = heads(make_heads)
    best = int(rows["rare_top1"].to_numpy().argmax())
    entropy, shares = np.full(len(rows), 0.5), rows["rare_top1"].to_numpy(float).copy()
    entropy[1 - best], shares[1 - best] = 0.995, 0.9
    ((_, figure),) = rare_word_figures(rows.assign(entropy_norm=entropy, rare_top1=shares), [kept(ROWS)])
    assert figure is not None
    title = figure.get_suptitle().replace("\n", " ")
    assert f"encoder.{rows['layer'].iloc[1 - best]}.{1 - best} has 90%, but attends evenly" in title
    assert f"encoder.{rows['layer'].iloc[best]}.{best} of" in title


def test_models_and_stacks_have_figures_of_their_own(make_heads: Make) -> None:
    both = pd.concat([heads(make_heads), heads(make_heads).assign(model="second")])
    maps = [kept(ROWS), kept(ROWS, model="second")]
    assert [name for name, _ in rare_word_figures(both, maps)] == ["rare_words_1", "rare_words_2"]


@pytest.fixture(scope="module", params=rest_slow(["tiny", "demo"]))
def loaded(request: pytest.FixtureRequest, wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    if request.param == "demo":
        return load("demo")
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=120)
    return LoadedModel("tiny", model, wordpiece_tokenizer, None)


def test_who_points_at_the_rarest_word_is_who_the_metric_counts(tmp_path: Path, loaded: LoadedModel) -> None:
    """For every head, of three sentences alone: the share of heads.csv times the words."""
    lists = make_frequency("wordfreq:en", ())
    examples = shown_examples(open_corpus("demo"), loaded, 3)
    shown = collect_attention(loaded, examples, frequencies=(lists, None))
    maps = [own for n, maps in enumerate(shown) for own in maps.sentence_maps("demo", sentence=n)]
    corpus = NamedCorpus(examples, "three")  # type: ignore[arg-type]
    rows = classify_heads(loaded, corpus, frequencies=Frequencies(lists)).tables["heads"].rows
    for row in rows.to_dict("records"):
        found = [word_map(own, Head(row["stack"], row["layer"], row["head"])) for own in maps]
        assert sum(len(own.queries) for own in found if own is not None) == row["rare_words"]
        hits = sum(own.hits for own in found if own is not None)
        assert hits == pytest.approx(row["rare_top1"] * row["rare_words"])
    with RunFolder.create(tmp_path / "run", command="classify", model="demo") as run:
        run.start({})
        write_maps(run, maps)
        run.finish({})
    read = read_maps(RecordedRun(tmp_path / "run", "run", {}, {}), str)
    assert [own.key_groups for own in read] == [own.key_groups for own in maps]
    labels = tmp_path / "run" / "labels.json"
    labels.write_text(labels.read_text().replace('"rarest": [', '"rarest": [99, ', 1))
    with pytest.raises(InputError, match=r"the rarest words .* are not among"):
        read_maps(RecordedRun(tmp_path / "run", "run", {}, {}), str)


def test_words_have_the_same_rarest_word_as_tokens(loaded: LoadedModel) -> None:
    lists = make_frequency("wordfreq:en", ())
    examples = shown_examples(open_corpus("demo"), loaded, 2)
    for tokens, words in zip(
        *(collect_attention(loaded, examples, level=level, frequencies=(lists, None)) for level in ("token", "word")),
        strict=True,
    ):
        one, other = (own.groups["encoder"][1] for own in (tokens, words))
        assert one.rarest == other.rarest
        assert one.rarest
        assert [one.forms[i] for i in one.rarest] == [words.labels["encoder"][1][i] for i in other.rarest]
