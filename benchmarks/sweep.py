"""What a sweep over all heads costs beside one full pass for every head; prints markdown tables.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/sweep.py

CPU time of this process; rounds in which every contender runs once, in turn; medians of ratios. Full passes have a hook
that zeroes one head's slice of what the output projection gets, which costs nothing worth measuring; they are timed for
some heads of every layer and multiplied, as all heads of a layer cost the same (`--heads 12` runs all). They run the
batches of the sweep; larger ones that are also sorted by length, and the sweep those, too, as small batches suit a
sweep, which fills passes with heads, better than full passes; and batches of 16 sentences as they come in the corpus.
Sentences are the first of UD EWT's test set where the treebank is at hand, else the demo's; spread over the treebank
they would be padded still more. In the first batch all heads of the sweep are compared with full passes.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import inputs as corpora
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from headlens.analyses.ablate.sweep import sweep_batch
from headlens.attention.sites import find_sites
from headlens.corpora.encoding import EncodedExample
from headlens.corpora.sentence import Example
from headlens.corpora.sources import open_corpus
from headlens.heads import Head
from headlens.models.loading import LoadedModel
from headlens.replay.head_ablation import BATCH_TOKENS, Replay
from headlens.runs.corpus_pass import CorpusReader
from headlens.weights.head_slicing import projections

Inputs = dict[str, Tensor]
Found = dict[Head, Tensor]


def read(outputs: Any, inputs: Any) -> Tensor:
    """A sentence embedding, the logits of a classifier, or a decoder's of 16 tokens after the text: (rows, k)."""
    if "logits" in outputs and outputs.logits.dim() == 3:
        unread = inputs["input_ids"].shape[1] - outputs.logits.shape[1]
        return outputs.logits[torch.arange(len(outputs.logits)), inputs["attention_mask"].sum(dim=1) - 1 - unread, :16]
    if "logits" in outputs:
        return outputs.logits
    mask = inputs["attention_mask"][..., None]
    return (outputs.last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)


@contextmanager
def cut(layer: nn.Module, head: int, n_heads: int) -> Iterator[None]:
    def zero(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = args[0].clone()
        hidden.unflatten(-1, (n_heads, -1))[..., head, :] = 0
        return (hidden, *args[1:])

    handle = layer.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        handle.remove()


def full_passes(model: PreTrainedModel, batches: Sequence[Inputs], heads: int) -> Found:
    """One full pass for each of some heads of every layer."""
    found = {}
    for site in find_sites(model):
        layer = projections(model, site.module).output
        for head in site.heads[:heads]:
            with cut(layer, head.head, site.n_heads), torch.no_grad():
                found[head] = torch.cat([read(model(**b), b) for b in batches])
    return found


def ours(model: PreTrainedModel, batches: Sequence[Inputs], tokens: int | None) -> Found:
    heads = [h for s in find_sites(model) for h in s.heads]

    def read_alone(batch: Inputs) -> dict[str, Any]:
        """What a task asks of a decoder: the logits from the end of the shortest text on."""
        length = batch["input_ids"].shape[1]
        return {"logits_to_keep": length + 1 - int(batch["attention_mask"].sum(dim=1).min())}

    with Replay(model, tokens=tokens) as replay:
        found = [
            sweep_batch(
                replay,
                {**batch, **(read_alone(batch) if model.can_generate() else {})},
                lambda outputs, batch=batch: read(outputs, batch).double().numpy(),
                heads,
            )
            for batch in batches
        ]
    return dict(zip(heads, torch.from_numpy(np.concatenate(found, axis=1)[1:]), strict=True))


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    begun = time.process_time()
    run()
    return time.process_time() - begun


def timed(model: PreTrainedModel, batches: Sequence[Inputs], heads: int) -> float:
    """CPU seconds of full passes for all heads."""
    n_heads = find_sites(model)[0].n_heads
    return seconds(lambda: full_passes(model, batches, heads)) * n_heads / heads


def print_table(title: str, contenders: dict[str, Callable[[], float]], rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds):
        names = list(contenders)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(contenders[name]())
    base = found["sweep"]
    print(f"\n{title}\n\n| contender | CPU seconds | / sweep | lowest-highest |\n|---|---|---|---|")
    for name, times in found.items():
        ratios = [t / b for t, b in zip(times, base, strict=True)]
        print(
            f"| {name} | {statistics.median(times):.2f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f}-{max(ratios):.2f} |",
            flush=True,
        )


def operations(model: PreTrainedModel, batch: Inputs) -> float:
    """Floating-point operations of a full pass for every head over those of the sweep: what exact reuse can save."""
    with FlopCounterMode(display=False) as sweep:
        ours(model, [batch], None)
    with FlopCounterMode(display=False) as whole, torch.no_grad():
        model(**batch)
    heads = sum(site.n_heads for site in find_sites(model))
    return heads * float(whole.get_total_flops()) / sweep.get_total_flops()


def difference(model: PreTrainedModel, batch: Inputs) -> float:
    """Largest difference between the sweep and full passes, relative to the largest number."""
    one, other = ours(model, [batch], None), full_passes(model, [batch], find_sites(model)[0].n_heads)
    return max(float((one[h] - other[h].cpu()).abs().max() / other[h].abs().max()) for h in other)


def budgeted(rows: Sequence[EncodedExample], tokens: int) -> list[list[EncodedExample]]:
    """Sentences of similar length together, padding included in the budget."""
    found: list[list[EncodedExample]] = []
    for row in sorted(rows, key=lambda r: r.length):
        if not found or (len(found[-1]) + 1) * row.length > tokens:
            found.append([])
        found[-1].append(row)
    return found


def encoded(reader: CorpusReader, examples: Sequence[Example]) -> list[EncodedExample]:
    return [row for e in examples if (row := reader.encoder.encode(e)) is not None]


def classifier(config: BertConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return BertForSequenceClassification(config).eval()


def models(names: Sequence[str], loaded: LoadedModel) -> Iterator[tuple[str, PreTrainedModel, float]]:
    """Titles, models, and how much of the sentences they run."""
    if "minilm" in names:
        mini = classifier(BertConfig(**{**loaded.model.config.to_dict(), "num_labels": 2}))
        mini.base_model.load_state_dict(loaded.model.base_model.state_dict(), strict=False)
        yield "MiniLM (6 x 12), classifier", mini, 1
    if "bert" in names:
        yield "Random BERT-base (12 x 12), classifier", classifier(BertConfig(attn_implementation="sdpa")), 0.25
    if "gpt2" in names:
        torch.manual_seed(0)
        yield "Random GPT-2 (12 x 12), next token", GPT2LMHeadModel(GPT2Config()).eval(), 0.1
    if "embedding" in names:
        yield "MiniLM (6 x 12), sentence embeddings", loaded.model, 1


def compared(
    title: str, model: PreTrainedModel, reader: CorpusReader, rows: Sequence[EncodedExample], options: Any
) -> None:
    def collated(parts: Sequence[Sequence[EncodedExample]]) -> list[Inputs]:
        return [dict(reader.collate(part).inputs) for part in parts]

    same = collated(budgeted(rows, options.batch_tokens))
    large = collated(budgeted(rows, 2048))
    small = collated([rows[i : i + 16] for i in range(0, len(rows), 16)])
    contenders = {
        "sweep": lambda: seconds(lambda: ours(model, same, options.tokens)),
        "hook per head, the same batches": lambda: timed(model, same, options.heads),
        "sweep, sorted batches of 2048 tokens": lambda: seconds(lambda: ours(model, large, options.tokens)),
        "hook per head, sorted batches of 2048 tokens": lambda: timed(model, large, options.heads),
        "hook per head, batches of 16": lambda: timed(model, small, options.heads),
    }
    title = f"{title}, {len(rows)} texts of {sum(r.length for r in rows) / len(rows):.0f} tokens"
    padding = [sum(b["input_ids"].numel() for b in bs) / sum(r.length for r in rows) - 1 for bs in (same, small)]
    title += f" (+{padding[0]:.0%} padding, in batches of 16 {padding[1]:.0%})"
    title += f", {operations(model, same[0]):.2f} by operations of the first batch"
    print_table(f"{title}, largest difference {difference(model, same[0]):.1e}", contenders, options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--long", type=int, default=4, help="texts of 512 tokens; 0 for none")
    parser.add_argument("--heads", type=int, default=1, help="of each layer, timed for full passes")
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS["cpu"])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--models", default="minilm,embedding,bert")
    options = parser.parse_args()
    loaded = corpora.loaded_model("demo", "cpu")
    examples = list(open_corpus(str(corpora.TREEBANK) if corpora.TREEBANK.exists() else "demo"))
    reader = CorpusReader.of(loaded, examples[0])
    for title, model, share in models(options.models.split(","), loaded):
        compared(title, model, reader, encoded(reader, examples[: int(share * options.sentences)]), options)
        if long := int(share * options.long):
            texts = encoded(reader, corpora.joined(examples[: 60 * long], reader))
            compared(title, model, reader, sorted(texts, key=lambda r: -r.length)[:long], options)


if __name__ == "__main__":
    main()
