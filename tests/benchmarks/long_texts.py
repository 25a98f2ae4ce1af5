"""What one long text costs, in time and memory: python tests/benchmarks/long_texts.py [--lengths 512,1024,4096].

A BERT of one layer with 12 heads of 64 reads one text of so many tokens: plainly with sdpa, and with the statistics of
all heads. Each row is a process of its own: peak memory beyond what it held before, and CPU time as a ratio to the
plain pass, which takes turns with the other in that process.
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
from transformers import BertConfig, BertModel

from headlens.models.loading import LoadedModel, load
from headlens.runs.corpus_reader import CorpusReader

WAYS = dict(zip(("three metrics", "all of classify"), (3, 7), strict=True))


def one_text(length: int) -> inputs.Work:
    """A text of about so many tokens, sentences of the treebank with their trees side by side, and its reader."""
    demo = load("demo")
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=1, vocab_size=len(demo.tokenizer), max_position_embeddings=length, attn_implementation="sdpa"
    )
    tokenizer = demo.tokenizer
    tokenizer.model_max_length = length
    sentences = inputs.sentences(None, 10**6)
    feed = CorpusReader.of(LoadedModel("one-layer", BertModel(config).eval(), tokenizer, None), sentences[0])
    text = inputs.joined(islice(cycle(sentences), length // 5), feed, length)[0]
    return inputs.Work(f"n={length}", feed, (text,), length)


def measure(length: int, way: str, rounds: int) -> None:
    """Print the tokens, the megabytes and the ratio of CPU times of one way."""
    work = one_text(length)
    batches = list(work.batches())
    plain = measure_statistics.plain_way(work.feed)
    todo = measure_statistics.headlens_way(work.feed, WAYS[way]) if way in WAYS else plain
    plain(list(one_text(64).batches()))  # what torch loads at its first pass is no memory of the text
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
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        with torch.inference_mode():
            measure(int(options.way[0]), options.way[1], options.rounds)
        return
    print("| tokens | plain, MB | " + " | ".join(f"{way}, MB | ratio" for way in WAYS) + " |")
    print("|---:|---:|" + "---:|---:|" * len(WAYS), flush=True)
    for length in options.lengths.split(","):
        cells = []
        for way in ("plain", *WAYS):
            command = [sys.executable, __file__, "--way", length, way, "--rounds", str(options.rounds)]
            tokens, peak, ratio = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            cells += [f"{float(peak):.0f}", *([f"{float(ratio):.2f}"] if way in WAYS else [])]
        print(f"| {int(tokens):,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
