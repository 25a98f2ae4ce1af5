"""What the statistics of all heads cost: python benchmarks/measure_statistics.py [--model demo|bert-base-random].

Time is CPU time (of all threads; on a GPU the time between two events), as a ratio to a plain forward pass with sdpa
over the same batches; all ways take turns in one process. Memory is the peak of a process of its own, less that of a
plain forward pass over the same corpus.
"""

from __future__ import annotations

import os

# torch's threads would otherwise spin while they wait, which counts as CPU time. Before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import datetime
import importlib.metadata
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import contenders
import inputs
import torch
from device_time import milliseconds
from torch import Tensor

from headlens.attention.edits_and_observers import BatchTokens
from headlens.attention.session import AttentionSession
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch, collate
from headlens.corpora.frequency import make_frequency
from headlens.metrics.batch_cache import copied_with_facts
from headlens.metrics.confidence import Confidence
from headlens.metrics.entropy import Entropy
from headlens.metrics.mass import Mass
from headlens.metrics.metric import Metric, MetricSettings, Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.monotonicity import Monotonicity
from headlens.metrics.positions import Positions
from headlens.metrics.rare import RareWords
from headlens.metrics.similarity import HeadSimilarity
from headlens.metrics.syntax import Syntax
from headlens.runs.corpus_pass import CorpusReader, read_ahead, reads_ahead

RELATIONS = ("nsubj", "obj", "amod", "advmod")
TIERS = {
    "headlens: confidence, positions, entropy": 3,
    "headlens: all token metrics": 5,
    "headlens: + syntax, rare words": 6,
    "headlens: all metrics and similarity (classify)": 7,
}
KEEPING = "output_attentions kept, then numpy"
PLAIN = "plain forward (sdpa)"
TIMES = (1, 4, 16)

TOKEN_METRICS = (Confidence(), Positions(), Entropy(), Mass(), Monotonicity())


def headlens_way(
    reader: CorpusReader, tier: int, kernels: dict[str, list[str]] | None = None
) -> Callable[[Iterable[Batch]], Statistics]:
    """Everything `classify` does with the batches of a corpus, up to a tier; `kernels` is told what computed them."""
    kernels = {} if kernels is None else kernels
    metrics: list[Metric] = [*TOKEN_METRICS[:tier], *([RareWords(), Syntax(RELATIONS)] if tier > 5 else [])]
    if tier > 6:
        own = {metric.name for metric in metrics}
        metrics += [m.of(MetricSettings(RELATIONS)) for m in registered_metrics() if m.name not in own]
    frequency = make_frequency("wordfreq:en", []) if tier > 5 else None

    def way(batches: Iterable[Batch]) -> Statistics:
        watching = Statistics(metrics, reader.sites)
        observers = [watching, HeadSimilarity(reader.sites)] if tier > 6 else [watching]
        annotator = Annotator(RELATIONS if tier > 5 else (), frequency, words=tier > 6, sample=tier > 6)
        device = reader.model.device

        def prepared() -> Iterator[tuple[dict[str, Tensor], BatchTokens]]:
            for batch in batches:
                there = batch if device.type == "cpu" else collate(batch.examples, pad_id=reader.pad_id, device="cpu")
                tokens = annotator.annotate(there, AnnotationCounts(), decoder_only=reader.decoder_only)
                for observer in observers if device.type != "cpu" else ():
                    observer.look_ahead(tokens)
                yield there.inputs, tokens

        ahead = read_ahead(prepared()) if reads_ahead(device) else nullcontext(prepared())
        with AttentionSession(reader.model, observers=observers, kernel="fast") as session, ahead as batches_ahead:
            for made in batches_ahead:
                inputs, tokens = copied_with_facts(*made, device)
                with session.batch(tokens):
                    reader.model(**inputs)
        watching.totals.arrays()  # which waits for a GPU
        kernels.update(session.kernels())
        return watching

    return way


def plain_way(reader: CorpusReader) -> Callable[[Iterable[Batch]], None]:
    def way(batches: Iterable[Batch]) -> None:
        for batch in batches:
            reader.model(**batch.inputs)

    return way


def ways(reader: CorpusReader) -> dict[str, Callable[[Iterable[Batch]], object]]:
    """All that is measured, by name; the plain forward pass first."""
    return {
        PLAIN: plain_way(reader),
        **{name: headlens_way(reader, tier) for name, tier in TIERS.items()},
        **contenders.others(reader.model, reader.encoder.tokenizer),
    }


def as_sums(found: object, reader: CorpusReader) -> contenders.Sums:
    """What headlens found, as the others write it."""
    if isinstance(found, contenders.Sums):
        return found
    assert isinstance(found, Statistics)
    sums = contenders.empty(reader.model)
    confidence, positions, entropy = (found.sums(m) for m in TOKEN_METRICS[:3])
    for layer, site in enumerate(found.sites):
        sums.peaks[layer] = confidence[site]["confidence_all.x"]
        sums.entropies[layer] = entropy[site]["entropy.x"]
        sums.offsets[layer] = positions[site]["count"]
        sums.tokens = int(confidence[site]["confidence_all.n"][0])
    return sums


def measure_time(work: inputs.Work, rounds: int, device: str) -> None:
    """Print a row per way: median and range of the ratios, and tokens per second."""
    batches = list(work.batches())
    tokens = sum(int(b.source.real.sum()) for b in batches)
    todo = ways(work.reader)
    found = {name: as_sums(way(batches), work.reader) for name, way in todo.items() if name != PLAIN}
    first = next(iter(found.values()))
    differing = [name for name, sums in found.items() if not (sums.agree(first) and sums.tokens == tokens)]
    times: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(rounds):
        for name, way in todo.items():
            times[name].append(milliseconds(partial(way, batches), device) / 1000)
    longest = max(b.source.shape[1] for b in batches)
    print(
        f"\n{work.name}: {len(work.examples)} texts, {tokens} tokens in {len(batches)} batches of at most "
        f"{work.batch_tokens}, longest {longest}; same numbers: {'no: ' + ', '.join(differing) if differing else 'yes'}"
    )
    print(f"\n| {work.name} | ratio | range | tokens/s |\n|---|---:|---:|---:|")
    for name, own in times.items():
        ratios = sorted(a / b for a, b in zip(own, times[PLAIN], strict=True))
        speed = tokens / statistics.median(own)
        print(f"| {name} | {statistics.median(ratios):.2f} | {ratios[0]:.2f}-{ratios[-1]:.2f} | {speed:,.0f} |")


def peak_megabytes(device: str) -> float:
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget_peak(device: str) -> None:
    """Start from what the process holds now: loading a model takes more memory than running it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def print_peak(work: inputs.Work, name: str, times: int, device: str) -> None:
    """One way over a corpus repeated several times, in this process."""
    own = {KEEPING: partial(contenders.naive, work.reader.model, keep=True)}
    way = own[name]() if name in own else ways(work.reader)[name]
    forget_peak(device)
    way(work.batches(times))
    print(peak_megabytes(device))


def measure_memory(arguments: list[str], name: str) -> None:
    """Print extra megabytes per way and size of the corpus, each from a process of its own."""
    sizes = " | ".join(f"x{t}" for t in TIMES)
    print(f"\n| {name}: MB beyond a plain forward, by size of the corpus | {sizes} |\n|---|---:|---:|---:|")
    base: list[float] = []
    for way in (PLAIN, *TIERS, "output_attentions + numpy", KEEPING):
        peaks = []
        for times in TIMES:
            command = [sys.executable, __file__, *arguments, "--peak", way, "--times", str(times), "--work", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(float(done.stdout.split()[-1]))
        base = base or peaks
        if way != PLAIN:
            print(f"| {way} | {' | '.join(f'{p - b:+.0f}' for p, b in zip(peaks, base, strict=True))} |", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["demo", "bert-base-random"], default="demo")
    parser.add_argument("--corpus", type=Path, help="a CoNLL-U file instead of UD EWT's test set")
    parser.add_argument("--sentences", type=int, default=520, help="how many, spread over the corpus")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--work", choices=["sentences", "n=512"], help="only one of the two")
    parser.add_argument("--memory-sentences", type=int, default=130, help="the same for memory; 0 leaves it out")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def works(options: argparse.Namespace) -> list[inputs.Work]:
    """Returns the corpus as sentences and as texts of 512 tokens, or the one of them that is asked for."""
    loaded = inputs.loaded_model(options.model, options.device)
    texts = inputs.sentences(options.corpus, options.sentences)
    reader = CorpusReader.of(loaded, texts[0])
    both = [("sentences", texts), ("n=512", inputs.joined(texts, reader))]
    chosen = [b for b in both if options.work in (None, b[0])]
    return [inputs.Work(name, reader, tuple(found), options.batch_tokens) for name, found in chosen]


def print_machine(options: argparse.Namespace) -> None:
    names = ["torch", "transformers", "numpy", "nnsight", "transformer-lens"]
    there = [n for n in names if contenders.find_spec(n.replace("-", "_"))]
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in there)
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    print(f"{datetime.datetime.now(datetime.UTC).date()}, {options.model}, {device}, {options.threads} thread(s)")
    print(f"{platform.platform()}, Python {platform.python_version()}, {versions}")


def main() -> None:
    """Prints a table of time, and of memory, for each kind of text; `--peak` measures memory in this process."""
    options = parse()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        if options.peak:
            print_peak(works(options)[0], options.peak, options.times, options.device)
            return
        print_machine(options)
        for work in works(options):
            measure_time(work, options.rounds, options.device)
            if options.memory_sentences:
                measure_memory([*sys.argv[1:], "--sentences", str(options.memory_sentences)], work.name)


if __name__ == "__main__":
    main()
