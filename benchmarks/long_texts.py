"""What one long text costs, in time and memory: python benchmarks/long_texts.py [--lengths 512,4096] [--decoder].

A BERT of one layer with 12 heads of 64, or a GPT-2, reads one text of so many tokens: plainly with sdpa, and with the
statistics of all heads. Each row is a process of its own: peak memory beyond what it held before, and CPU time as a
ratio to the plain pass, which takes turns with the other in that process.
"""

from __future__ import annotations

import os

# torch's threads would otherwise spin while they wait, which counts as CPU time. Before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import statistics
import subprocess
import sys
from functools import partial
from itertools import cycle, islice

import inputs
import measure_statistics
import torch
from device_time import milliseconds
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedModel

from headlens.models.loading import LoadedModel, load
from headlens.runs.corpus_pass import CorpusReader

WAYS = dict(zip(("three metrics", "all of classify"), (3, 7), strict=True))


def one_layer(vocabulary: int, length: int, *, decoder: bool) -> PreTrainedModel:
    """A model of the usual width with random weights."""
    torch.manual_seed(0)
    if decoder:
        return GPT2Model(GPT2Config(n_layer=1, vocab_size=vocabulary, n_positions=length, attn_implementation="sdpa"))
    config = BertConfig(
        num_hidden_layers=1, vocab_size=vocabulary, max_position_embeddings=length, attn_implementation="sdpa"
    )
    return BertModel(config)


def one_text(length: int, *, decoder: bool) -> inputs.Work:
    """A text of about so many tokens, sentences of the treebank with their trees side by side, and its reader."""
    demo = load("demo")
    tokenizer = demo.tokenizer
    tokenizer.model_max_length = length
    sentences = inputs.sentences(None, 10**6)
    model = one_layer(len(tokenizer), length, decoder=decoder).eval()
    reader = CorpusReader.of(LoadedModel("one-layer", model, tokenizer, None), sentences[0])
    text = inputs.joined(islice(cycle(sentences), length // 5), reader, length)[0]
    return inputs.Work(f"n={length}", reader, (text,), length)


def measure(length: int, way: str, rounds: int, *, decoder: bool) -> None:
    """Print the tokens, the megabytes and the ratio of CPU times of one way."""
    work = one_text(length, decoder=decoder)
    batches = list(work.batches())
    plain = measure_statistics.plain_way(work.reader)
    todo = measure_statistics.headlens_way(work.reader, WAYS[way]) if way in WAYS else plain
    plain(list(one_text(64, decoder=decoder).batches()))  # what torch loads at its first pass is no memory of the text
    before = measure_statistics.peak_megabytes("cpu")
    measure_statistics.forget_peak("cpu")
    before = min(before, measure_statistics.peak_megabytes("cpu"))
    todo(batches)
    peak = measure_statistics.peak_megabytes("cpu") - before
    ratios = []
    for _ in range(rounds):
        base = milliseconds(partial(plain, batches), "cpu")
        ratios.append(milliseconds(partial(todo, batches), "cpu") / base)
    print(int(batches[0].source.real.sum()), peak, statistics.median(ratios))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192,16384,32768")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decoder", action="store_true", help="a causal model")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        with torch.inference_mode():
            measure(int(options.way[0]), options.way[1], options.rounds, decoder=options.decoder)
        return
    print("| tokens | plain, MB | " + " | ".join(f"{way}, MB | ratio" for way in WAYS) + " |")
    print("|---:|---:|" + "---:|---:|" * len(WAYS), flush=True)
    for length in options.lengths.split(","):
        cells = []
        for way in ("plain", *WAYS):
            kind = ["--decoder"] if options.decoder else []
            command = [sys.executable, __file__, "--way", length, way, "--rounds", str(options.rounds), *kind]
            tokens, peak, ratio = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            cells += [f"{float(peak):.0f}", *([f"{float(ratio):.2f}"] if way in WAYS else [])]
        print(f"| {int(tokens):,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
