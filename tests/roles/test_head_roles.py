"""The whole classification of tiny saved models: columns, every kind of model, every refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas.testing import assert_frame_equal
from saved import Memory, build, save, sentence, tree
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.attention.sites import find_sites
from headlens.corpora.frequency import corpus_frequency
from headlens.corpora.sentence import Example, Link
from headlens.corpora.text import plain_sentence
from headlens.errors import CorpusError, ModelError, NoHeadsError, OptionError
from headlens.heads import Head
from headlens.interventions.compacting import without_heads
from headlens.maps.sentence_attention import collect_attention
from headlens.models.loading import LoadedModel, load
from headlens.roles.head_roles import Classification, Frequencies, check_relations, classify_heads
from headlens.roles.role_options import ClassifyOptions, Thresholds
from headlens.runs.corpus_pass import CorpusPass
from headlens.weights import after_heads

KEYS = ["model", "stack", "layer", "head"]
HEAD_COLUMNS = [
    *KEYS,
    *("tokens", "confidence", "confidence_all", "entropy", "entropy_norm", "positional_offset", "positional_share"),
    *("to_cls", "to_sep", "to_bos", "to_eos", "to_punct", "to_self", "to_prev", "to_next", "distance"),
    *("rare_top1", "rare_top2", "rare_chance", "relevance", "role", "roles"),
]
SYNTAX_COLUMNS = [
    *KEYS,
    *("relation", "direction", "n", "correct", "accuracy", "ci_low", "ci_high", "baseline_offset", "baseline"),
    *("p_value", "p_holm", "syntactic", "significant"),
]
WORDS = (("dogs", "cats", "teachers"), ("chase", "see"), ("small", "old"), ("mice", "birds"))
TREES = [tree(s, v, a, o) for s in WORDS[0] for v in WORDS[1] for a in WORDS[2] for o in WORDS[3]]
LONGER = [sentence("the zyxwvut story of old teachers and small mice never ends"), sentence("They sleep , it seems .")]
CORPUS = Memory([Example(s) for s in [*TREES, *LONGER]])
PAIRS = Memory([Example(s, t) for s, t in zip(TREES, reversed(TREES), strict=True)])
OPTIONS = ClassifyOptions(relations=("nsubj", "obj"), thresholds=Thresholds(min_instances=5))
FREQUENCIES = Frequencies(corpus_frequency(CORPUS), corpus_frequency(CORPUS))

Make = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def make(
    tmp_path_factory: pytest.TempPathFactory,
    wordpiece_tokenizer: PreTrainedTokenizerBase,
    bytebpe_tokenizer: PreTrainedTokenizerBase,
    marian_tokenizer: PreTrainedTokenizerBase,
) -> Make:
    """Saves a tiny model with its tokenizer and loads it again; each once."""
    found: dict[str, LoadedModel] = {}
    pad = {"pad_token_id": marian_tokenizer.pad_token_id, "decoder_start_token_id": marian_tokenizer.pad_token_id}
    kinds: dict[str, tuple[PreTrainedTokenizerBase, dict[str, Any]]] = {
        "BertModel": (wordpiece_tokenizer, {}),
        "GPT2LMHeadModel": (bytebpe_tokenizer, {}),
        "MarianMTModel": (marian_tokenizer, pad),
    }

    def made(name: str) -> LoadedModel:
        if name not in found:
            tokenizer, settings = kinds[name]
            folder = tmp_path_factory.mktemp("models") / "tiny"
            found[name] = load(save(build(name, len(tokenizer), **settings), folder, tokenizer))
        return found[name]

    return made


def run(
    loaded: LoadedModel, corpus: Memory = CORPUS, options: ClassifyOptions = OPTIONS, **more: Any
) -> Classification:
    return classify_heads(loaded, corpus, options, more.pop("frequencies", FREQUENCIES), **more)


_USUAL: dict[tuple[int, int], Classification] = {}


def usual(loaded: LoadedModel, corpus: Memory = CORPUS) -> Classification:
    """What `run` finds with the options of most tests: found once for the models that `make` keeps."""
    key = id(loaded), id(corpus)
    if key not in _USUAL:
        _USUAL[key] = run(loaded, corpus)
    return _USUAL[key]


def stacks(result: Classification, name: str = "heads") -> list[str]:
    return [str(s) for s in result.tables[name].stacks]


def test_columns(make: Make) -> None:
    frames = usual(make("BertModel")).frames("tiny")
    assert list(frames["heads"])[: len(HEAD_COLUMNS)] == HEAD_COLUMNS
    assert list(frames["syntax"])[: len(SYNTAX_COLUMNS)] == SYNTAX_COLUMNS
    assert list(frames["positions"]) == [*KEYS, "offset", "count", "share", "share_null"]
    assert list(frames["rare"])[:4] == list(frames["similarity"])[:4] == KEYS
    assert frames["positions"]["offset"].tolist()[:19] == ["<-8", *map(str, range(-8, 9)), ">8"]
    assert set(frames["syntax"]["direction"]) == {"dep->head", "head->dep"}
    assert frames["heads"]["relevance"].isna().all()
    assert {len(frames[n]) for n in ("heads", "rare")} == {4}
    assert (len(frames["positions"]), len(frames["syntax"]), len(frames["similarity"])) == (4 * 19, 4 * 4, 4 * 3)


def test_encoder(make: Make) -> None:
    result = usual(make("BertModel"))
    assert stacks(result) == ["encoder"]
    assert result.encoding.sentences == len(CORPUS.examples)
    assert set(result.tables["heads"].rows["tokens"]) == {result.encoding.tokens}
    assert result.annotation.arcs == {"nsubj": 24, "obj": 24}
    assert set(result.tables["syntax"].rows["n"]) == {24}


def test_decoder(make: Make) -> None:
    result = usual(make("GPT2LMHeadModel"))
    assert stacks(result) == stacks(result, "syntax") == ["decoder"]
    # nobody looks ahead
    assert result.tables["heads"].rows["to_next"].eq(0).all()


def test_encoder_decoder(make: Make) -> None:
    result = usual(make("MarianMTModel"), PAIRS)
    assert stacks(result) == ["encoder", "decoder", "cross"]
    assert stacks(result, "syntax") == ["encoder", "decoder"]
    rows = result.tables["heads"].rows.set_index("stack")
    assert rows.loc["cross", "distance"].isna().all()
    assert rows.loc["cross", "monotonicity"].notna().all()
    assert rows.loc["encoder", "monotonicity"].isna().all()


def test_encoder_of_an_encoder_decoder(make: Make) -> None:
    result = run(make("MarianMTModel"), Memory([Example(s) for s in TREES]))
    assert stacks(result) == ["encoder"]
    assert "The corpus has no target side: only the encoder was analysed." in result.notes
    both = usual(make("MarianMTModel"), PAIRS).tables["heads"].rows
    own = both[both["stack"] == "encoder"].reset_index(drop=True)
    columns = ["tokens", "confidence", "entropy", "positional_share", "to_eos"]
    assert_frame_equal(result.tables["heads"].rows[columns], own[columns], rtol=1e-6)


def test_the_tables_of_a_smaller_model_have_the_numbers_of_the_original(make: Make) -> None:
    """Heads that are gone have no rows; the others of the last layer see the same as before, under the same names."""
    whole = make("BertModel")
    last = max(s.layer for s in find_sites(whole.model))
    gone = Head("encoder", last, 0)
    small = run(replace(whole, model=without_heads(whole.model, [gone])))
    for name, table in usual(whole).tables.items():
        here, keys = small.tables[name].rows, ["stack", "layer", "head"]
        others = table.rows[~((table.rows["layer"] == last) & (table.rows["head"] == gone.head))]
        if name == "similarity":
            others = others[~((others["other_layer"] == last) & (others["other_head"] == gone.head))]
        assert here[keys].to_numpy().tolist() == others[keys].to_numpy().tolist(), name
        same = {"heads": "confidence", "positions": "share", "syntax": "correct", "rare": "rare_top1"}.get(name)
        if same is not None:
            np.testing.assert_allclose(here[same], others[same], rtol=1e-6, err_msg=name)


def test_an_encoder_that_lost_all_its_heads(make: Make) -> None:
    whole = make("MarianMTModel")
    heads = [h for s in find_sites(whole.model) if s.stack == "encoder" for h in s.heads]
    emptied = replace(whole, model=without_heads(whole.model, heads))
    with pytest.raises(NoHeadsError, match="There are no heads left in the encoder of"):
        run(emptied, Memory([Example(s) for s in TREES]))
    assert stacks(run(emptied, PAIRS)) == ["decoder", "cross"]


KINDS = [(name, level) for level in ("token", "word") for name in ("BertModel", "GPT2LMHeadModel", "MarianMTModel")]


@pytest.mark.parametrize("tokens", rest_slow([50, 200]))
@pytest.mark.parametrize("kind", rest_slow(KINDS, [("BertModel", "token")]), ids=" ".join)
def test_batches_do_not_matter(kind: tuple[str, Any], tokens: int, make: Make) -> None:
    name, level = kind
    corpus = PAIRS if name == "MarianMTModel" else CORPUS
    found = [
        run(
            make(name), corpus, ClassifyOptions(OPTIONS.relations, OPTIONS.thresholds, level=level, batch_tokens=n)
        ).tables
        for n in (2000, tokens)
    ]
    for tables in found[1:]:
        assert list(tables) == list(found[0])
        for table in tables:
            own, other = found[0][table].rows, tables[table].rows
            if table == "heads":  # the sign of an axis of the embedding can hang on rounding
                own, other = (f.drop(columns=["similarity_x", "similarity_y"]) for f in (own, other))
            if table == "similarity":  # a root makes much of the rounding of a divergence that is nearly 0
                for rows in (own, other):
                    np.testing.assert_allclose(rows["js_distance"] ** 2, rows["js_divergence"], rtol=1e-12)
                own, other = (f.drop(columns="js_distance") for f in (own, other))
            assert_frame_equal(own, other, rtol=1e-6, atol=1e-6)
            counts = own.select_dtypes("integer").columns
            assert_frame_equal(own[counts], other[counts], check_exact=True)


@pytest.mark.parametrize("kind", ["BertModel", "GPT2LMHeadModel", "MarianMTModel"])
def test_texts_padded_for_graphs_have_the_same_numbers(kind: str, make: Make) -> None:
    loaded, corpus = make(kind), PAIRS if kind == "MarianMTModel" else CORPUS
    padded = classify_heads(loaded, corpus, ClassifyOptions(kernel="graphs"))
    expected = classify_heads(loaded, corpus, ClassifyOptions())
    assert padded.kernels["no CUDA graphs: the device is a cpu"] == []
    assert set(padded.tables) == set(expected.tables)
    for name, table in expected.tables.items():
        # The sign of an axis of the embedding can hang on rounding, and a root makes much of it.
        vague = ["similarity_x", "similarity_y", "js_distance"]
        found, own = (rows.drop(columns=vague, errors="ignore") for rows in (padded.tables[name].rows, table.rows))
        assert_frame_equal(found, own, rtol=1e-5, atol=1e-6)


def test_word_level(make: Make) -> None:
    tokens, words = (
        run(make("BertModel"), options=ClassifyOptions(OPTIONS.relations, level=level)) for level in ("token", "word")
    )
    n_words = words.encoding.words + 2 * words.encoding.sentences
    assert set(words.tables["heads"].rows["tokens"]) == {n_words}
    assert n_words < tokens.encoding.tokens
    # what is about words anyway stays
    assert_frame_equal(words.tables["syntax"].rows, tokens.tables["syntax"].rows)


def test_exclude_self(make: Make) -> None:
    rows = [
        run(make("BertModel"), options=ClassifyOptions(OPTIONS.relations, exclude_self=e)).tables["syntax"].rows
        for e in (False, True)
    ]
    assert (rows[1]["correct"] >= rows[0]["correct"]).all()
    assert (rows[1]["correct"] > rows[0]["correct"]).any()
    assert (rows[1]["baseline"] == rows[0]["baseline"]).all()


def test_baseline_from_another_corpus(make: Make) -> None:
    flat = sentence("mice dogs chase", (2, 2, -1), ("obj", "nsubj", "root"))
    own = usual(make("BertModel")).tables["syntax"].rows
    other = run(make("BertModel"), baseline_corpus=Memory([Example(flat)])).tables["syntax"].rows
    objects = own["relation"].eq("obj") & own["direction"].eq("dep->head")
    assert set(own[objects]["baseline_offset"]) == {-2}
    assert set(other[objects]["baseline_offset"]) == {2}
    assert set(own[objects]["baseline"]) == {1.0}
    assert set(other[objects]["baseline"]) == {0.0}
    assert (own["correct"] == other["correct"]).all()


def test_baseline_corpus_without_trees(make: Make) -> None:
    with pytest.raises(CorpusError, match="bare: the baseline corpus has no instance of the relations"):
        run(make("BertModel"), baseline_corpus=Memory([Example(LONGER[0])], "bare"))


def test_long_sentences_are_counted_and_noted(make: Make) -> None:
    long = sentence(" ".join(["dogs"] * 60))
    result = run(make("BertModel"), Memory([*CORPUS.examples, Example(long), Example(long)]))
    assert result.encoding.too_long == 2
    assert (
        "2 sentences longer than 40 tokens were left out. --data-args long-sentences=window splits them instead."
        in result.notes
    )
    assert_frame_equal(result.tables["heads"].rows, usual(make("BertModel")).tables["heads"].rows)


def test_only_long_sentences(make: Make) -> None:
    with pytest.raises(CorpusError, match="the model can read no sentence: 1 longer than its 40 tokens, 0 empty"):
        run(make("BertModel"), Memory([Example(sentence(" ".join(["dogs"] * 60)))]), frequencies=None)


def test_sentences_without_trees(make: Make) -> None:
    result = usual(make("BertModel"))
    assert result.annotation.no_tree == 2
    assert any(note.startswith("2 sentences have no dependency tree") for note in result.notes)
    bare = run(make("BertModel"), Memory([Example(s) for s in LONGER]))
    assert "syntax" not in bare.tables
    assert not bare.tables["heads"].rows["roles"].str.contains("syntactic").any()


def test_without_frequencies(make: Make) -> None:
    result = run(make("BertModel"), frequencies=Frequencies())
    assert "rare" not in result.tables
    assert result.tables["heads"].rows[["rare_top1", "rare_top2", "rare_chance"]].isna().all(axis=None)


def test_similarity_off_and_of_all_queries(make: Make) -> None:
    off, every = (
        run(make("BertModel"), options=ClassifyOptions(OPTIONS.relations, similarity=mode)) for mode in ("off", "all")
    )
    assert "similarity" not in off.tables
    assert "similarity_x" not in off.tables["heads"].rows
    assert set(every.tables["similarity"].rows["tokens"]) == {every.encoding.tokens}
    assert set(usual(make("BertModel")).tables["similarity"].rows["tokens"]) == {len(CORPUS.examples)}


def test_few_instances_are_noted(make: Make) -> None:
    result = run(make("BertModel"), options=ClassifyOptions(("nsubj", "obj"), Thresholds(min_instances=25)))
    assert any("fewer than 25): nsubj (24), obj (24)" in note for note in result.notes)
    assert not result.tables["syntax"].rows["syntactic"].any()


def test_roles_come_from_the_thresholds(make: Make) -> None:
    least = {"min_instances": 1, "min_sentences": 1, "min_tokens": 1}
    generous = Thresholds(positional=0, diagonal=0, margin=-1, rare=-1, separator=0, broad=0, **least)
    distinct = Frequencies(lambda word: float(sum(map(ord, word))))  # hardly two words tie
    found = run(make("BertModel"), options=ClassifyOptions(("nsubj",), generous), frequencies=distinct)
    rows = found.tables["heads"].rows
    scores = found.more["roles"].set_index("role")
    # Heads of random weights follow no relation significantly, however low the margin.
    passed = {"positional", "self", "rare", "separator", "broad"}
    assert set(scores.index[scores["above_threshold"] == len(rows)]) == passed
    assert scores["above_threshold"].drop(list(passed)).eq(0).all()
    # They attend as evenly as the null head, which holds no role.
    assert (scores["held"] <= scores["above_threshold"]).all()
    assert scores.loc["broad", "held"] == 0
    assert rows["entropy_norm"].min() > 0.99
    assert rows["role"].tolist() == [r.split("; ")[0] for r in rows["roles"]]


@pytest.mark.slow
def test_too_little_text_gives_no_roles(make: Make) -> None:
    loaded, thresholds = make("BertModel"), Thresholds(sink=0.0, neighbour=0.0, punctuation=0.0, min_instances=1)
    read = usual(loaded).encoding
    for sentences, tokens, given in ((0, 0, True), (1, 0, False), (0, 1, False)):
        least = replace(thresholds, min_sentences=read.sentences + sentences, min_tokens=read.tokens + tokens)
        found = run(loaded, options=ClassifyOptions(("nsubj",), least))
        rows = found.tables["heads"].rows
        assert rows["role"].ne("").any() == rows["roles"].ne("").any() == given
        for column in ("role", "roles", "roles_by_weight"):
            assert rows[column].eq("").all() or given
        assert rows["nearest"].ne("").all()
        told = f"No roles are assigned: {read.sentences} sentences with {read.tokens} tokens were read, but roles need "
        assert found.notes[0].startswith(told) == (not given)
        assert np.isfinite(rows["confidence"]).all()


def test_a_relation_that_never_occurs(make: Make) -> None:
    with pytest.raises(OptionError, match=r"--relations: nsubjj does not occur in the trees of memory"):
        run(make("BertModel"), options=ClassifyOptions(("nsubjj",)))


@pytest.mark.parametrize(
    ("relations", "advice"),
    [
        (("nsub",), "Did you mean nsubj? Relations that occur: nsubj, obj."),
        (("nsub", "obj", "nsubj:past"), "Did you mean nsubj, nsubj:pass? Relations that occur: nsubj, obj."),
        (("xyz",), "Relations that occur: nsubj, obj."),
        (("vocativ",), "Relations that occur: nsubj, obj."),
    ],
)
def test_a_misspelt_relation_is_told_with_the_one_that_is_meant(relations: tuple[str, ...], advice: str) -> None:
    found = {"nsubj": 3, "nsubj:pass": 1, "obj": 2, "vocative": 0}
    with pytest.raises(OptionError, match="not occur in the trees of memory") as caught:
        check_relations(relations, found, "memory")
    assert caught.value.advice == advice


def test_empty_corpus(make: Make) -> None:
    with pytest.raises(CorpusError, match="nothing: the corpus is empty"):
        run(make("BertModel"), Memory([], "nothing"))


def test_a_target_for_a_decoder_alone(make: Make) -> None:
    with pytest.raises(OptionError, match="reads single sentences, but the corpus has a source and a target"):
        run(make("GPT2LMHeadModel"), PAIRS)


def test_where_the_output_projection_is_not_known_norms_are_told_to_be_missing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = usual(make("BertModel"))  # before: results are kept for all tests
    monkeypatch.setattr(after_heads, "_after_heads", lambda _forward: None)
    (note,) = [note for note in run(make("GPT2LMHeadModel")).notes if "Norms" in note]
    assert note == (
        "Norms are not measured where headlens does not know the output projection of heads: decoder.0, decoder.1."
    )
    assert not [note for note in known.notes if "Norms" in note]
    assert known.tables["heads"].rows["norm_share"].groupby(known.tables["heads"].rows["layer"]).sum().tolist() == (
        pytest.approx([1, 1])
    )


def test_an_encoder_reads_both_texts_of_a_pair_as_one(make: Make) -> None:
    result = usual(make("BertModel"), PAIRS)
    heads = result.tables["heads"].rows
    texts = [[len(side.text.split()) for side in (e.source, e.target or e.source)] for e in PAIRS.examples]
    assert (heads["pair_tokens"] >= np.sum(texts)).all()
    sums = heads[["to_cls", "to_sep", "to_pair"]].sum(axis=1)
    assert ((sums > heads["to_pair"]) & (sums < 1)).all()
    assert heads["aligned"].isna().all() if "aligned" in heads else True
    assert "The two texts of 24 pairs were read as one sequence each." in result.notes


def test_links_of_two_texts_in_one_sequence(make: Make) -> None:
    # What head 0 of layer 0 finds from the second text, by its own attention.
    loaded, pairs = make("BertModel"), PAIRS.examples[:6]
    (maps, *_) = [m.weights["encoder"][0, 0].double() for m in collect_attention(loaded, pairs[:1], level="word")]
    n = len(pairs[0].source.words)
    own = maps[1 + n + 1 : 1 + n + 1 + n, 1 : 1 + n].argmax(-1).tolist()
    gold = [Example(pairs[0].source, pairs[0].target, links=tuple(Link(s, t, True) for t, s in enumerate(own)))]
    heads = run(loaded, Memory([*gold, *pairs[1:]])).tables["heads"].rows
    assert heads["aer"][0] == 0
    assert 0 < heads["aer"][1:].max() <= 1
    assert heads["aer_written"].isna().all()


def test_one_text_that_holds_two(make: Make) -> None:
    texts = ["old cats >> small cats", "dogs see >> mice", "no pair here", "a >> b >> c", ">> only one"]
    corpus = Memory([Example(plain_sentence(text, str(i))) for i, text in enumerate(texts)])
    result = run(make("BertModel"), corpus, replace(OPTIONS, split_at=">>"))
    heads = result.tables["heads"].rows
    assert set(heads["pair_tokens"]) == {2 + 2 + 2 + 1}
    assert set(heads["equal_tokens"]) == {2}
    assert (
        "3 sentences do not hold two texts with tokens, with >> once between them; measures of pairs do not count them."
        in result.notes
    )
    assert (result.annotation.pairs, result.annotation.no_pair) == (2, 3)


def test_texts_without_an_equal_token(make: Make) -> None:
    corpus = Memory([Example(plain_sentence("old cats | small dogs", ""))])
    (note,) = [n for n in run(make("BertModel"), corpus, replace(OPTIONS, split_at="|")).notes if "occurs" in n]
    assert note == (
        "No token of either text occurs in the other, so nothing shows which words correspond: --alignments gives a "
        "gold alignment."
    )


@pytest.mark.parametrize(
    ("corpus", "message"),
    [(CORPUS, "no sentence of memory contains it exactly once"), (PAIRS, "the corpus already consists of pairs")],
)
def test_what_cannot_be_split(make: Make, corpus: Memory, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run(make("BertModel"), corpus, replace(OPTIONS, split_at="=>"))


@pytest.mark.parametrize("text", ["", "  ", "\t"])
def test_nothing_to_split_at(text: str) -> None:
    with pytest.raises(OptionError, match="--data-args split-at is blank"):
        ClassifyOptions(split_at=text)


def test_no_tokenizer(tmp_path: Path) -> None:
    loaded = load(save(build("BertModel"), tmp_path / "bare"))
    with pytest.raises(ModelError, match="has no tokenizer, so it cannot read text"):
        run(loaded)


def test_progress_counts_every_sentence(make: Make) -> None:
    steps: list[int] = []
    run(
        make("BertModel"),
        options=ClassifyOptions(OPTIONS.relations, batch_tokens=50),
        corpus_pass=CorpusPass(steps.append),
    )
    assert len(steps) > 1
    assert sum(steps) == len(CORPUS.examples)


def test_the_model_is_left_as_it_was(make: Make) -> None:
    loaded = make("BertModel")
    before = loaded.model.config._attn_implementation, loaded.model.training
    first = run(loaded).tables["heads"].rows
    assert (loaded.model.config._attn_implementation, loaded.model.training) == before
    assert_frame_equal(run(loaded).tables["heads"].rows, first)
    assert np.isfinite(first["confidence"]).all()


@pytest.mark.slow
def test_no_head_is_called_rare_when_most_rarest_words_tie(make: Make) -> None:
    # A threshold of 0 would call every head rare that ever points at a rarest word.
    thresholds = Thresholds(min_instances=5, rare=0.0, min_sentences=8, min_tokens=8)
    options = ClassifyOptions(("nsubj", "obj"), thresholds)
    corpus = Memory([Example(sentence("the old story of small birds never ends here"))] * 8)
    ranks = {
        w: float(i) for i, w in enumerate(("ends", "story", "birds", "old", "small", "never", "here", "of", "the"))
    }
    clear = run(make("BertModel"), corpus, options, frequencies=Frequencies(ranks.__getitem__))
    vague = run(make("BertModel"), corpus, options, frequencies=Frequencies(lambda _: 0.0))
    assert clear.annotation.tied_sentences == 0
    assert clear.more["roles"].set_index("role").loc["rare", "above_threshold"] > 0
    assert vague.annotation.tied_sentences == vague.annotation.rare_sentences == 8
    assert "rare" not in set(vague.more["roles"]["role"])
    assert any("tie for the rarest" in note for note in vague.notes)
