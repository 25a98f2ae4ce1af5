"""Circuits of heads and MLPs as MIB measures them, against passes with plain hooks and sums by hand."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_tasks import TASKS, given_examples
from saved import build, save
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.mib_circuits import RANKINGS, SHARES, CircuitBench
from headlens.analyses.ablate.options import AblateRequest, AblationOptions
from headlens.analyses.ablate.plan import ablate_plan
from headlens.analyses.ablate.ranking_overviews import measured_circuits
from headlens.analyses.ablate.recipe import run_ablate
from headlens.errors import InputError, OptionError, UnsupportedModelError
from headlens.interventions.patched_nodes import PatchedNodes
from headlens.runs.progress import Reporter
from headlens.runs.reading import read_recorded
from headlens.shared_options import OutputOptions
from headlens.statistics.bootstrap import Draws
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_options import TaskData

NODES = ["a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1"]
TASK = TASKS["causal-lm"]


def made(
    tokenizer: PreTrainedTokenizerBase, name: str = "GPT2LMHeadModel", count: int = 24
) -> tuple[Any, Examples, Examples]:
    """A model in double precision, and texts with their words in another order."""
    grouped = {"num_key_value_heads": 1, "head_dim": 8} if name.startswith(("Llama", "Gemma")) else {}
    model = build(name, len(tokenizer), **grouped).double()
    examples = given_examples(TASK, model, tokenizer, count)
    turned = [replace(p, rows=tuple(replace(r, ids=r.ids[::-1]) for r in p.rows)) for p in examples.prepared]
    return model, examples, replace(examples, prepared=tuple(turned))


def half(examples: Examples) -> Any:
    return np.arange(len(examples)) % 2 == 0


def parts(model: Any, name: str) -> tuple[Any, slice]:
    """Where a node of GPT-2 shows: the module whose input is the heads' outputs, or the MLP; and which numbers."""
    layer, _, head = name[1:].partition(".h")
    block = model.transformer.h[int(layer)]
    return (block.mlp, slice(None)) if name[0] == "m" else (block.attn.c_proj, slice(8 * int(head), 8 * int(head) + 8))


def patched(model: Any, examples: Examples, other: Examples, nodes: Collection[str], weight: float = 1.0) -> Any:
    """Outputs for one example with some nodes patched, by plain hooks."""
    kept: dict[str, Any] = {}

    def run(own: Examples, hook: Any) -> Any:
        handles = []
        for name in nodes:
            module, place = parts(model, name)
            if name[0] == "m":
                handles.append(
                    module.register_forward_hook(lambda _, __, out, name=name, place=place: hook(name, place, out))
                )
            else:
                handles.append(
                    module.register_forward_pre_hook(
                        lambda _, read, name=name, place=place: (hook(name, place, read[0]),)
                    )
                )
        batch = own.task.collate(own.prepared, own.reader, "cpu")
        with torch.no_grad():
            outputs = model(**own.task.inputs(model, batch))
        for handle in handles:
            handle.remove()
        return outputs, batch

    def keep(name: str, place: slice, value: Any) -> Any:
        kept[name] = value[..., place].clone()
        return value

    def put(name: str, place: slice, value: Any) -> Any:
        value = value.clone()
        value[..., place] += weight * (kept[name] - value[..., place])
        return value

    run(other, keep)
    return run(examples, put)


def losses(model: Any, examples: Examples, other: Examples, nodes: Collection[str], weight: float = 1.0) -> np.ndarray:
    outputs, batch = patched(model, examples, other, nodes, weight)
    return examples.task.losses(outputs, batch).numpy()


def test_scores_are_what_patching_costs(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """One node at a time by plain hooks, and its slope by finite differences."""
    model, examples, changed = made(wordpiece_tokenizer, count=8)
    bench = CircuitBench(model, examples, changed, half(examples), "loss")
    assert bench.nodes.names == NODES
    part, other = examples.part(half(examples)), changed.part(half(examples))
    intact = losses(model, part, other, ())
    for number, name in enumerate(NODES):
        cost = losses(model, part, other, [name]) - intact
        assert bench.scores["patching"][number] == pytest.approx(cost.mean(), abs=1e-10)
        step = 1e-4
        low, high = (losses(model, part, other, [name], weight).mean() for weight in (-step, step))
        assert bench.scores["attribution"][number] == pytest.approx((high - low) / (2 * step), rel=1e-4, abs=1e-8)
    assert np.ptp(bench.scores["patching"]) > 1e-3


def test_areas_are_those_of_the_definition(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """CPR and CMD added up by hand from circuits that are run by plain hooks, with intervals over examples."""
    model, examples, changed = made(wordpiece_tokenizer)
    bench = CircuitBench(model, examples, changed, half(examples), "loss", orders=2, replicates=100)
    tables = bench.outcome()
    part, other = examples.part(~half(examples)), changed.part(~half(examples))
    counts = Draws.of(part.keys, 100, 0).counts
    tokens = np.array([sum(label >= 0 for row in p.rows for label in row.labels) for p in part.prepared])
    tokens = tokens if tokens.all() else np.array([len(p.rows[0].ids) - 1 for p in part.prepared])

    def metric(own: np.ndarray) -> np.ndarray:
        """Loss by token, and in every replicate."""
        return np.array([(own * w).sum() / (tokens * w).sum() for w in (np.ones(len(own)), *counts.astype(float))])

    full = metric(losses(model, part, other, ()))
    corrupted = metric(losses(model, other, other, ()))
    areas = tables["mib_areas"].set_index(["ranking", "measure"])
    for name in RANKINGS:
        for measure, scores in (("CPR", bench.scores[name]), ("CMD", abs(bench.scores[name]))):
            ranked = [NODES[n] for n in sorted(range(6), key=lambda n: -scores[n])]
            curve = []
            for share in SHARES:
                value = metric(losses(model, part, other, ranked[int(share * 6) :]))
                curve.append((value - corrupted) / (full - corrupted))
            heights = curve if measure == "CPR" else [abs(1 - height) for height in curve]
            widths = np.diff(SHARES)[:, None]
            area = (widths * (np.array(heights[:-1]) + np.array(heights[1:])) / 2).sum(0)
            row = areas.loc[name, measure]
            assert row["area"] == pytest.approx(area[0], abs=1e-9)
            low, high = np.quantile(area[1:], [0.025, 0.975])
            expected = (min(low, area[0]), max(high, area[0]))
            assert (row["ci_low"], row["ci_high"]) == pytest.approx(expected, abs=1e-9)
            order = {"CPR": "signed", "CMD": "absolute"}[measure]
            rows = tables["mib"][lambda t, name=name, order=order: (t["ranking"] == name) & (t["order"] == order)]
            assert rows["faithfulness"].tolist() == pytest.approx([height[0] for height in curve], abs=1e-9)
            assert rows["nodes"].tolist() == [0] * 7 + [1, 3, 6]
            assert [set(text.split()) for text in rows["circuit"]] == [set(ranked[: int(s * 6)]) for s in SHARES]
            assert (rows["heads"] + rows["mlps"]).tolist() == rows["nodes"].tolist()
    assert len(areas.loc["random"]) == 4
    assert tables["mib"]["texts_p_value"].between(0, 1).all()
    for p_value in (0.04, 0.06, np.nan):
        (note,) = bench.notes(tables | {"mib": tables["mib"].assign(texts_p_value=p_value)})
        assert ("these may be shares of nothing" in note) == (p_value != 0.04)
    (note,) = bench.notes(tables)
    assert "Circuits of the shares 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1 have no node at all" in note


def test_nothing_is_faithful_where_changed_texts_are_no_worse(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Texts and changed texts, exchanged: a share of the way down to a better loss would look like one of a worse."""
    model, examples, changed = made(wordpiece_tokenizer)
    given: dict[str, Any] = {"orders": 1, "replicates": 100}
    there = CircuitBench(model, examples, changed, half(examples), "loss", **given).outcome()
    bench = CircuitBench(model, changed, examples, half(examples), "loss", **given)
    tables = bench.outcome()
    assert there["mib"]["faithfulness"].notna().all()
    assert tables["mib"]["full"].iloc[0] > tables["mib"]["corrupted"].iloc[0]
    assert tables["mib"]["faithfulness"].isna().all()
    assert tables["mib_areas"][["area", "ci_low", "ci_high"]].isna().all(axis=None)
    (note,) = bench.notes(tables)
    assert "there is nothing that circuits could be faithful to" in note


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "Gemma2ForCausalLM", "GPTNeoXForCausalLM"])
def test_everything_patched_is_the_other_text_but_for_its_embeddings(
    name: str, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """With the embeddings of the other text, too, nothing is left of the first one; files say what MIB has to know."""
    model, examples, changed = made(wordpiece_tokenizer, name, 4)
    bench = CircuitBench(model, examples, changed, half(examples), "loss")
    nodes = PatchedNodes(model)
    batch, other = (e.task.collate(e.prepared, e.reader, "cpu").inputs for e in (examples, changed))
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        intact = model(**batch).logits
    with torch.no_grad(), nodes.open():
        expected = model(**other).logits
        embeddings = model.get_input_embeddings()(other["input_ids"])
        nodes.gates = torch.zeros(len(nodes.names))
        torch.testing.assert_close(model(**batch).logits[real], intact[real], rtol=1e-9, atol=1e-9)
        nodes.gates = torch.ones(len(nodes.names))
        half_way = model(**batch).logits
        both = model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"]).logits
    assert not torch.allclose(half_way[real], expected[real])
    torch.testing.assert_close(both[real], expected[real], rtol=1e-9, atol=1e-9)
    files = bench.write(tmp_path)
    assert [path.relative_to(tmp_path) for path in files] == [Path(f"{r}/importances.json") for r in RANKINGS]
    for path, ranking in zip(files, RANKINGS, strict=True):
        graph = json.loads(path.read_text())
        assert {*graph} == {"cfg", "nodes", "edges"}
        parallel = name == "GPTNeoXForCausalLM"
        assert graph["cfg"] == {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": parallel, "d_model": 16}
        assert list(graph["nodes"]) == ["input", *NODES, "logits"]
        assert "score" not in graph["nodes"]["input"], "MIB keeps what has no score"
        scores = [graph["nodes"][node]["score"] for node in NODES]
        assert scores == pytest.approx(bench.scores[ranking])


def test_other_models_are_refused(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    for name, settings in {"BertForMaskedLM": {}, "MarianMTModel": {"pad_token_id": 0}, "OPTForCausalLM": {}}.items():
        with pytest.raises(UnsupportedModelError, match="is no decoder whose layers have equally many heads"):
            PatchedNodes(build(name, len(wordpiece_tokenizer), **settings))


def test_a_run_writes_tables_and_files_and_can_go_on(
    wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(build("GPT2LMHeadModel", len(wordpiece_tokenizer)), tmp_path / "model", wordpiece_tokenizer)
    words = ["the old cat sees a red house", "a red house sees the old cat"]
    texts = [" ".join((words[n % 2] + " near the river").split()[: 5 + n % 4]) for n in range(24)]
    (tmp_path / "data.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "changed.txt").write_text(
        "\n".join(text.replace("the", "and").replace(" a ", " and ").replace("a ", "and ", 1) for text in texts) + "\n"
    )
    options = AblationOptions("counterfactual", str(tmp_path / "changed.txt"), mib=tmp_path / "mib", replicates=100)
    request = AblateRequest(
        (model,),
        TaskData("causal-lm", (str(tmp_path / "data.txt"),)),
        options,
        figures=False,
        place=OutputOptions(tmp_path / "run"),
    )
    work = [w.text for w in ablate_plan(request, Reporter()).work]
    assert any("each of 6 heads and MLPs patched" in text for text in work)
    asked, measured = list[str](), CircuitBench._patching

    def stopped(self: CircuitBench) -> Any:
        asked.append("patching")
        if len(asked) == 1:
            raise KeyboardInterrupt
        return measured(self)

    monkeypatch.setattr(CircuitBench, "_patching", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_ablate(request)
    monkeypatch.setattr(CircuitBench, "_attribution", lambda _: pytest.fail("measured twice"))
    run = run_ablate(replace(request, place=OutputOptions(tmp_path / "run", resume=True)))
    assert len(run.tables["mib_areas"]) == 2 * (2 + 5)
    assert (tmp_path / "run" / "mib.csv").exists()
    assert (tmp_path / "mib" / "patching" / "importances.json").exists()
    assert any("CPR by attribution" in note for note in run.notes)
    page = measured_circuits([read_recorded(tmp_path / "run", "run")])
    assert len(page.rows) == len(run.tables["mib_areas"])
    with pytest.raises(OptionError, match=r"importances\.json exists already"):
        replace(request, place=OutputOptions(tmp_path / "another"))


def test_it_needs_changed_texts() -> None:
    with pytest.raises(InputError, match=r"(?s)mib patches heads and MLPs.*--mode counterfactual --pairs FILE"):
        AblationOptions(mib=Path("mib"))
    with pytest.raises(InputError, match="circuits of one model"):
        AblateRequest(("a", "b"), options=AblationOptions("counterfactual", "pairs.txt", mib=Path("mib")))
