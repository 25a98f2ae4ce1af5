"""`headlens compact`: what is written, what is said, what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from saved import build, save
from tiers import rest_slow
from transformers import BertModel, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.compact import model_comparison, recipe
from headlens.analyses.compact.model_comparison import Difference
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.heads import Head
from headlens.interventions.compacting import heads_of_model
from headlens.interventions.gates import HeadGates
from headlens.models.loading import load
from headlens.weights.head_slicing import heads_left

Headlens = Callable[..., Any]
FAST = ("--limit", 5, "--data-args", "rounds=2")
HEADS = "encoder.0.1,encoder.1.0,encoder.1.1,encoder.1.2"
COLUMNS = [
    "model",
    "state",
    "heads",
    "masked",
    "parameters",
    "weight_bytes",
    "seconds_per_forward",
    "ci_low",
    "ci_high",
]


def outputs(folder: object, heads: str = "") -> torch.Tensor:
    loaded = load(str(folder))
    gates = HeadGates({Head.parse(h): 0.0 for h in heads.split(",") if h})
    ids = torch.arange(10, 28).reshape(2, 9)
    extra = {"decoder_input_ids": ids} if loaded.model.config.is_encoder_decoder else {}
    with AttentionSession(loaded.model, edits=[gates]), torch.no_grad():
        found: torch.Tensor = loaded.model(input_ids=ids, **extra)[0]
    return found


@pytest.mark.parametrize("thorough", rest_slow([False, True]), ids=["attend", "every command"])
def test_a_smaller_model_that_every_command_reads(headlens: Headlens, tiny_bert: Path, thorough: bool) -> None:
    done = headlens("compact", tiny_bert, "--heads", HEADS, *FAST, "--out", "small")
    assert done.code == 0, done.err
    assert "Self-check against the model with these heads at 0: outputs differ by at most" in done.out
    assert "Plain from_pretrained cannot read the folder" in done.out
    assert "headlens classify small" in done.out
    # Sizes that differ are written differently, however little that is.
    rows = [line.split() for line in done.out.splitlines() if line.startswith((" original", " compact"))]
    shown = [float(row[3]) for row in rows]
    assert shown == pytest.approx(list(pd.read_csv("small/compact.csv")["weight_bytes"] / 1e6), abs=1e-3)
    assert shown[0] > shown[1]
    torch.testing.assert_close(outputs("small"), outputs(tiny_bert, HEADS), atol=1e-5, rtol=0)

    table = pd.read_csv("small/compact.csv")
    assert list(table.columns)[:9] == COLUMNS
    assert list(table["heads"]) == [6, 2]
    # Each head: three projections of 24 to 8 with biases, one of 8 to 24.
    assert table["parameters"][0] - table["parameters"][1] == 4 * (3 * 25 * 8 + 24 * 8)
    lost, whole = table["operations"][0] - table["operations"][1], table["operations"][0]
    assert 0 < lost < whole
    assert table["theoretical_speedup"].tolist() == pytest.approx([1.0, whole / (whole - lost)])
    assert f"{whole / (whole - lost):.2f}" in next(
        line for line in done.out.splitlines() if line.startswith(" compact")
    )
    size = Path("small/model.safetensors").stat().st_size
    assert 0 < size - table["weight_bytes"][1] < 10_000

    record = json.loads(Path("small/run.json").read_text())
    assert record["removed"] == HEADS.split(",")
    assert record["self_check"]["largest"] <= 1e-5
    assert not list(Path("small").glob("**/.saving*"))

    wrong = headlens("attend", "small", "--layer", 0, "--head", 1, "--out", "b")
    assert wrong.code == 2
    assert "Choose 0, 2; both count from 0." in wrong.err
    assert headlens("attend", "small", "--layer", 0, "--out", "a").code == 0
    if thorough:
        assert headlens("classify", "small", "--limit", 5, "--out", "c").code == 0
        found = pd.read_csv("c/heads.csv")
        assert list(found[["stack", "layer", "head"]].itertuples(index=False)) == [("encoder", 0, 0), ("encoder", 0, 2)]
        assert headlens("relevance", "small", "--limit", 5, "--no-figures", "--out", "r").code == 0
        assert list(pd.read_csv("r/relevance.csv")["head"].unique()) == [0, 2]
        assert headlens("models", "check", "small").code == 0


@pytest.mark.slow
def test_the_page_shows_a_model_before_and_after(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("compact", tiny_bert, "--heads", HEADS, *FAST, "--out", "small").code == 0
    assert headlens("classify", tiny_bert, "small", "--limit", 20, "--no-figures", "--out", "c").code == 0
    whole, small = json.loads(Path("c/run.json").read_text())["models"]
    assert "heads_removed" not in whole
    assert small["heads_removed"] == HEADS.split(",")
    assert headlens("report", "c").code == 0
    page = Path("c/report.html").read_text()
    assert "small, encoder: 4 of the 6 heads of tiny-bert were removed." in page
    assert "Roles before and after pruning" in page


@pytest.mark.slow
def test_confidence_is_that_of_the_masked_model(headlens: Headlens, tiny_bert: Path) -> None:
    """A head of the first layer sees the same as before, under the same number."""
    assert headlens("compact", tiny_bert, "--heads", "encoder.0.0", *FAST, "--out", "small").code == 0
    for name, model in (("before", tiny_bert), ("after", "small")):
        assert headlens("classify", model, "--limit", 5, "--out", name).code == 0
    keys = ["stack", "layer", "head"]
    before, after = (pd.read_csv(f"{n}/heads.csv").set_index(keys)["confidence"] for n in ("before", "after"))
    for head in (1, 2):
        assert after["encoder", 0, head] == pytest.approx(before["encoder", 0, head], rel=1e-5)
    assert ("encoder", 0, 0) not in after.index


def test_a_compacted_model_loses_more(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "one").code == 0
    done = headlens("compact", "one", "--heads", "encoder.0.2,encoder.0.1,encoder.1.0", *FAST, "--out", "two")
    assert done.code == 0, done.err
    assert "1 head had already been removed" in done.out
    assert [str(h) for h in heads_of_model(load("two").model).removed] == ["encoder.0.1", "encoder.0.2", "encoder.1.0"]
    expected = outputs(tiny_bert, "encoder.0.1,encoder.0.2,encoder.1.0")
    torch.testing.assert_close(outputs("two"), expected, atol=1e-5, rtol=0)
    again = headlens("compact", "two", "--heads", "encoder.0.1", "--out", "three")
    assert again.code == 2
    assert "All of these heads were removed before" in again.err
    assert not Path("three").exists()


def test_heads_from_a_table(headlens: Headlens, tiny_bert: Path) -> None:
    rows = ["ranked,1,encoder.0.1", "greedy,1,encoder.1.2", "greedy,2,encoder.1.2 encoder.0.0"]
    Path("pruning.csv").write_text("\n".join(["strategy,n_pruned,removed", *rows, ""]))
    chosen = ("--where", "strategy=greedy", "--where", "n_pruned=1")
    done = headlens("compact", tiny_bert, "--from", "pruning.csv", *chosen, *FAST, "--out", "s")
    assert done.code == 0, done.err
    assert [str(h) for h in heads_of_model(load("s").model).removed] == ["encoder.1.2"]
    repeated = headlens("compact", "--config", "s/run.json", "--out", "t")
    assert repeated.code == 0, repeated.err
    assert Path("t/heads_removed.json").read_text() == Path("s/heads_removed.json").read_text()


def test_stock_is_read_by_plain_from_pretrained(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "small").code == 0
    done = headlens("compact", "small", "--heads", "encoder.1.0", "--stock", *FAST, "--json", "--out", "stock")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert [s["state"] for s in summary["states"]] == ["original", "stock"]
    assert not Path("stock/heads_removed.json").exists()
    plain = BertModel.from_pretrained("stock").eval()
    with torch.no_grad():
        found = plain(input_ids=torch.arange(10, 28).reshape(2, 9))[0]
    torch.testing.assert_close(found, outputs(tiny_bert, "encoder.0.1,encoder.1.0"), atol=1e-5, rtol=0)
    weight = plain.encoder.layer[0].attention.self.query.weight
    assert (weight[8:16] == 0).all()
    assert (weight[:8] != 0).all()


@pytest.mark.slow
def test_encoder_decoders(headlens: Headlens, tiny_marian: Path) -> None:
    heads = "decoder.0.0,decoder.0.1,cross.1.1,encoder.0.0"
    done = headlens("compact", tiny_marian, "--heads", heads, *FAST, "--out", "small")
    assert done.code == 0, done.err
    assert "the decoder read the source" in done.out
    assert "use_cache is off" in done.out
    torch.testing.assert_close(outputs("small"), outputs(tiny_marian, heads), atol=1e-5, rtol=0)
    assert [s.n_heads for s in find_sites(load("small").model)] == [1, 2, 0, 2, 2, 1]


@pytest.fixture
def tiny_albert(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> str:
    return save(build("AlbertModel", len(wordpiece_tokenizer)), tmp_path / "albert", wordpiece_tokenizer)


def test_shared_weights(headlens: Headlens, tiny_albert: str) -> None:
    refused = headlens("compact", tiny_albert, "--heads", "encoder.1.0", *FAST, "--out", "small")
    assert refused.code == 2
    assert "share their weights" in refused.err
    assert not Path("small").exists()
    heads = "encoder.0.0,encoder.1.0"
    assert headlens("compact", tiny_albert, "--heads", heads, *FAST, "--out", "small").code == 0
    torch.testing.assert_close(outputs("small"), outputs(tiny_albert, heads), atol=1e-5, rtol=0)


def test_heads_that_are_only_masked(headlens: Headlens, tmp_path: Path, wordpiece_tokenizer: Any) -> None:
    model = build("AlbertModel", len(wordpiece_tokenizer), num_attention_heads=4)
    folder = save(model, tmp_path / "albert4", wordpiece_tokenizer)
    heads = "encoder.0.0,encoder.1.0,encoder.1.3"
    done = headlens("compact", folder, "--heads", heads, *FAST, "--out", "small")
    assert done.code == 0, done.err
    assert "1 head only masked, because other layers need the same weights" in done.out
    assert "encoder.1.3" in done.out
    assert list(pd.read_csv("small/compact.csv")["masked"]) == [0, 1]
    torch.testing.assert_close(outputs("small"), outputs(folder, heads), atol=1e-5, rtol=0)
    stock = headlens("compact", folder, "--heads", heads, "--stock", *FAST, "--out", "stock")
    assert stock.code == 2
    assert "leave --stock out" in stock.err
    assert not Path("stock").exists()


BAD = {
    "no heads": ([], "No heads to cut out were given", "--heads encoder.3.1"),
    "empty list": (["--heads", " , "], "No heads to cut out were given", "--from FILE"),
    "no head": (["--heads", "encoder.0"], "'encoder.0' is not the name of a head", "STACK.LAYER.HEAD"),
    "head out of range": (
        ["--heads", "encoder.0.3"],
        "no head encoder.0.3",
        "encoder.0 to encoder.1 with heads 0 to 2",
    ),
    "unknown stack": (["--heads", "cross.0.0"], "no head cross.0.0", "encoder.0 to encoder.1"),
    "all heads": (
        ["--heads", ",".join(f"encoder.{i}.{h}" for i in range(2) for h in range(3))],
        "No head of the model would be left",
        "Keep at least one",
    ),
    "two lists": (["--heads", "encoder.0.0", "--from", "x"], "--heads and --from cannot be combined", "one of them"),
    "a list and another": (["--heads", "encoder.0.0", "--heads", "encoder.0.1"], "--heads is given 2 times", "commas"),
    "no such list": (["--from", "nowhere.csv"], "--from: nowhere.csv cannot be read", "pruning.csv"),
    "rows without a table": (
        ["--heads", "encoder.0.0", "--where", "a=b"],
        "--where only applies together with --from",
        "--from",
    ),
    "a number of no ranking": (["--heads", "4"], "--heads 4 is a number of heads, but none are ranked", "--from"),
    "a column of no ranking": (
        ["--heads", "encoder.0.0", "--strategy-args", "rank-by=confidence"],
        "rank-by is for a ranking",
        "--heads N",
    ),
    "a shape of its own": (["--heads", "encoder.0.0", "--shape", "even"], "--shape", "--strategy-args shape"),
    "too few rounds": (
        ["--heads", "encoder.0.0", "--data-args", "rounds=1"],
        "--data-args rounds 1 is out of range",
        "at least 2",
    ),
}


@pytest.mark.parametrize(("options", "message", "advice"), BAD.values(), ids=list(BAD))
def test_bad_options(headlens: Headlens, tiny_bert: Path, options: list[str], message: str, advice: str) -> None:
    done = headlens("compact", tiny_bert, *options, "--out", "small")
    assert done.code == 2, done.out
    assert message in done.err
    assert advice in done.err
    assert "Traceback" not in done.err
    assert not Path("small").exists()


def test_models_that_cannot_be_cut(
    headlens: Headlens, tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase
) -> None:
    groups = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    model = build("LlamaModel", len(bytebpe_tokenizer), **groups)
    folder = save(model, tmp_path / "llama", bytebpe_tokenizer)
    done = headlens("compact", folder, "--heads", "decoder.0.0", *FAST, "--out", "small")
    assert done.code == 2
    assert "Each 2 heads of layers.0.self_attn (LlamaAttention) share keys and values" in done.err
    assert "Name as many heads of each group, or write zeros in their place with compact --stock." in done.err
    assert not Path("small").exists()
    # What the message advises.
    done = headlens("compact", folder, "--heads", "decoder.0.0", "--stock", *FAST, "--out", "zeros")
    assert done.code == 0, done.err
    assert "zeros stand in the output projections alone" in done.out
    done = headlens("compact", folder, "--heads", "decoder.0.0,decoder.0.3", *FAST, "--out", "small")
    assert done.code == 0, done.err
    assert headlens("classify", "small", "--limit", 3, "--no-figures", "--out", "roles").code == 0
    assert Path("roles/heads.csv").read_text().count("\n") == 7


@pytest.fixture
def tiny_llama(tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase) -> str:
    groups = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    return save(build("LlamaForCausalLM", len(bytebpe_tokenizer), **groups), tmp_path / "llama", bytebpe_tokenizer)


def ranking(folder: Path, metric: str = "loss") -> Path:
    """A table of ablation in which heads 1 and 3 of layer 0 matter least, then those of layer 1."""
    rows = [
        {
            "metric": metric,
            "stack": "decoder",
            "layer": layer,
            "head": h,
            "delta": layer + (h % 2 == 0) + h / 9,
        }
        for layer in range(2)
        for h in range(4)
    ]
    pd.DataFrame(rows).to_csv(folder / "ablation.csv", index=False)
    return folder / "ablation.csv"


def test_even_decoders_load_in_plain_transformers(headlens: Headlens, tiny_llama: str, tmp_path: Path) -> None:
    options = ("--from", ranking(tmp_path), "--heads", 4, *FAST, "--out", "small")
    done = headlens("compact", tiny_llama, *options)
    assert done.code == 0, done.err
    assert "Plain from_pretrained reads the folder" in done.out
    assert "The shape even changes the loss by" in done.out
    plain = LlamaForCausalLM.from_pretrained("small").eval()
    assert (plain.config.num_attention_heads, plain.config.num_key_value_heads, plain.config.head_dim) == (2, 2, 8)
    removed = "decoder.0.1,decoder.0.3,decoder.1.1,decoder.1.3"
    with torch.no_grad():
        found = plain(input_ids=torch.arange(10, 28).reshape(2, 9))[0]
    torch.testing.assert_close(found, outputs(tiny_llama, removed), atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs("small"), found, atol=1e-5, rtol=0)
    assert sorted(map(str, heads_of_model(load("small").model).removed)) == removed.split(",")

    table = pd.read_csv("small/compact.csv")
    assert list(table["cache_bytes_per_token"]) == [2 * 2 * 2 * 8 * 4] * 2
    assert np.exp(table["loss"]).tolist() == pytest.approx(table["perplexity"].tolist())
    assert math.isnan(table["loss_delta"][0])
    assert table["loss_delta"][1] == pytest.approx(table["loss"][1] - table["loss"][0])
    tokens = table["tokens_per_second"] * table["seconds_per_forward"]
    assert tokens[0] == pytest.approx(tokens[1])
    shapes = pd.read_csv("small/shapes.csv")
    assert list(shapes["shape"]) == ["even", "groups", "uneven"]
    assert list(shapes["chosen"]) == [True, False, False]
    # Measured with gates, and once more of the saved model.
    assert shapes["loss"][0] == pytest.approx(table["loss"][1], abs=1e-5)
    assert shapes["removed"][1].split() == ["decoder.0.1", "decoder.0.0", "decoder.1.1", "decoder.1.0"]
    assert set(shapes["removed"][2].split()) == {"decoder.0.1", "decoder.0.3", "decoder.0.0", "decoder.1.1"}

    # Every command reads it, with the numbers of the original, and tables say which heads share keys.
    assert headlens("classify", "small", "--limit", 3, "--no-figures", "--out", "roles").code == 0
    heads = pd.read_csv("roles/heads.csv")
    assert heads["head"].tolist() == [0, 2, 0, 2]
    assert heads["kv_group"].tolist() == [0, 1, 0, 1]


def test_what_plain_transformers_computes_is_compared(
    headlens: Headlens, tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def differs(_: PreTrainedModel, small: PreTrainedModel, *__: object) -> Difference:
        seen.append(any(heads_left(module) is not None for module in small.modules()))
        return Difference(0.0 if seen[-1] else 0.1, 1.0, 1e-5)

    monkeypatch.setattr(model_comparison, "difference_to_masked", differs)
    done = headlens("compact", tiny_llama, "--from", ranking(tmp_path), "--heads", 4, *FAST, "--out", "small")
    assert done.code == 1
    assert "differs from the masked one" in done.err
    assert seen == [True, False], "as headlens loads it, and as transformers does"
    assert not Path("small").exists()


def test_named_heads_and_shapes(headlens: Headlens, tiny_llama: str, tiny_bert: Path, tmp_path: Path) -> None:
    uneven = ("--heads", "decoder.0.0,decoder.0.3", *FAST)
    refused = headlens("compact", tiny_llama, *uneven, "--strategy-args", "shape=even", "--out", "small")
    assert refused.code == 2
    assert "These heads are not shape=even: group 0 of decoder.0 loses 1 head, group 0 of decoder.1 0" in refused.err
    odd = headlens("compact", tiny_llama, "--from", ranking(tmp_path), "--heads", 3, *FAST, "--out", "small")
    assert odd.code == 2
    assert "--heads 3 does not go with shape=even: one head of every group makes 4." in odd.err
    # BERT's configuration has no size of a head.
    even = ("--heads", "encoder.0.0,encoder.1.2", "--strategy-args", "shape=even", *FAST)
    bert = headlens("compact", tiny_bert, *even, "--out", "small")
    assert bert.code == 2
    assert "transformers cannot hold a BertModel with 2 heads of 8 features in each layer" in bert.err
    assert "--strategy-args shape=uneven, or zeros in place of the heads with --stock" in bert.err
    assert not Path("small").exists()
    done = headlens("compact", tiny_llama, *uneven, "--strategy-args", "shape=uneven", *FAST, "--out", "small")
    assert done.code == 0, done.err
    assert "Plain from_pretrained cannot read the folder" in done.out
    assert not Path("small/shapes.csv").exists()


@pytest.mark.parametrize("stock", rest_slow([False, True]))
def test_rescaled_models(headlens: Headlens, tiny_llama: str, stock: bool) -> None:
    heads = "decoder.0.0,decoder.0.2,decoder.1.1,decoder.1.2"
    more = ("--stock",) if stock else ()
    done = headlens("compact", tiny_llama, "--heads", heads, "--rescale", *more, *FAST, "--out", "small")
    assert done.code == 0, done.err
    assert "What is left of 2 layers was multiplied by" in done.out
    assert "Rescaling changes the loss by" in done.out
    assert "with these heads at 0 and what is left of their layers rescaled alike: outputs" in " ".join(
        done.out.split()
    )
    assert "As a decoder, on every other one of " in done.out, "the rest is what factors were fitted to"
    told = " ".join(done.out.split())
    assert "2 examples, fewer than 30: too few to tell how much the loss changes. --rescale is fitted to half" in told
    assert "Raise --limit, or give more text with --corpus. note:" in told
    assert "Times are per batch of up to 2,048 tokens, padding included: the corpus is one." in told
    factors = json.loads(Path("small/run.json").read_text())["rescaled"]
    assert set(factors) == {"decoder.0", "decoder.1"}
    gates = {Head("decoder", layer, h): factors[f"decoder.{layer}"] for layer in (0, 1) for h in range(4)}
    gates |= dict.fromkeys(map(Head.parse, heads.split(",")), 0.0)
    model = load(tiny_llama).model
    with AttentionSession(model, edits=[HeadGates(gates)]), torch.no_grad():
        expected = model(input_ids=torch.arange(10, 28).reshape(2, 9))[0]
    torch.testing.assert_close(outputs("small"), expected, atol=1e-5, rtol=0)
    plain = LlamaForCausalLM.from_pretrained("small").eval()
    with torch.no_grad():
        torch.testing.assert_close(plain(input_ids=torch.arange(10, 28).reshape(2, 9))[0], expected, atol=1e-5, rtol=0)


def test_what_was_typed_is_named_where_data_is_called_otherwise(headlens: Headlens, tiny_bert: Path) -> None:
    Path("x.tsv").write_text("a\tb\nthe cat\tx\n", encoding="utf-8")
    told = "x.tsv is a table: which column holds the sentences?\nName it with --column NAME. Columns: a, b.\n"
    run = ("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "small")
    assert headlens(*run, "--data", "x.tsv").err.endswith(f"{told}--data is another name of --corpus here.\n")
    assert headlens(*run, "--corpus", "x.tsv").err.endswith(told)
    assert "another name" not in headlens(*run, "--data", "none.tsv").err


def test_no_model_is_overwritten(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    own = headlens("compact", tiny_bert, "--heads", "encoder.0.1", "--out", tiny_bert, "--overwrite")
    assert own.code == 2
    assert "is the folder of the model itself" in own.err
    other = save(build("BertModel"), tmp_path / "other")
    done = headlens("compact", tiny_bert, "--heads", "encoder.0.1", "--out", other, "--overwrite")
    assert done.code == 2
    assert "holds a model already" in done.err
    assert load(str(tiny_bert)).n_parameters
    assert load(other).n_parameters
    assert headlens("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "small").code == 0
    assert headlens("compact", tiny_bert, "--heads", "encoder.0.2", *FAST, "--out", "small").code == 2
    assert headlens("compact", "small", "--heads", "encoder.0.2", *FAST, "--out", "small", "--overwrite").code == 2
    done = headlens("compact", tiny_bert, "--heads", "encoder.0.2", *FAST, "--out", "small", "--overwrite")
    assert done.code == 0, done.err
    assert [str(h) for h in heads_of_model(load("small").model).removed] == ["encoder.0.2"]


def test_a_full_disk(headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors has an error of its own for it."""

    def fill(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", fill)
    done = headlens("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "small")
    assert done.code == 2
    assert "Cannot write small: No space left on device." in done.err
    assert "--out" in done.err
    assert not Path("small").exists()


def test_a_run_that_was_stopped_goes_on(headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    arguments = ("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "small")
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "_notes", stop)
        assert headlens(*arguments).code == 130
    assert load("small").n_parameters
    assert not Path("small/compact.csv").exists()
    assert headlens(*arguments).code == 2
    done = headlens("compact", "--resume", "small")
    assert done.code == 0, done.err
    assert json.loads(Path("small/run.json").read_text())["status"] == "finished"
    assert [str(h) for h in heads_of_model(load("small").model).removed] == ["encoder.0.1"]


def test_a_model_that_differs_is_not_written(
    headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_comparison, "difference_to_masked", lambda *_: Difference(0.1, 1.0, 1e-5))
    done = headlens("compact", tiny_bert, "--heads", "encoder.0.1", *FAST, "--out", "small")
    assert done.code == 1
    assert "differs from the masked one" in done.err
    assert not Path("small").exists()


@pytest.mark.parametrize(
    ("arguments", "corpus", "told"),
    [
        ({"data": ["german.txt"], "target": "english.txt"}, (), True),
        ({"data": [], "corpus": "german.txt"}, (), True),
        ({"data": ["german.txt"]}, ("--corpus", "german.txt"), False),
        ({"data": []}, (), False),
        ({"data": [], "corpus": "demo"}, (), False),
    ],
)
def test_english_in_place_of_the_language_of_the_heads_is_told(
    headlens: Headlens, tiny_bert: Path, arguments: dict[str, Any], corpus: tuple[str, ...], told: bool
) -> None:
    Path("german.txt").write_text("the cat sleeps\n" * 12, encoding="utf-8")
    Path("found").mkdir()
    Path("found/pruning.csv").write_text("n_pruned,removed\n1,encoder.0.1\n", encoding="utf-8")
    Path("found/run.json").write_text(json.dumps({"command": "ablate", "arguments": arguments}), encoding="utf-8")
    done = headlens("compact", tiny_bert, "--from", "found", *FAST, *corpus, "--out", "small")
    assert done.code == 0, done.err
    notes = json.loads(Path("small/run.json").read_text())["notes"]
    assert any("the heads come from a run on german.txt" in note for note in notes) is told
