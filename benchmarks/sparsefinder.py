"""What Sparsefinder costs, and whether its memory grows with the corpus; prints a markdown table.

    OMP_NUM_THREADS=2 python benchmarks/sparsefinder.py --treebank en_ewt-ud-train.conllu

A random BERT of 6 layers of 8 heads (d = 64) with entmax reads so many sentences of a treebank; projections of all
heads are learned, clusters found, and all methods of the paper's grid measured on a fifth of the sentences. A number
of sentences has a process of its own. Memory is the peak of the process beyond what the model and libraries take, and
how much of it is in use at most, which the C library tells of what it has handed out: freed memory it often keeps.

`--again 1000` reads the first 1,000 sentences over and over, so that more of them have no longer ones among them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

from headlens.analyses.sparsefinder.fitting import fit_projections, fit_site
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_points import pareto
from headlens.analyses.sparsefinder.query_key_store import collect
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sources import open_corpus, split_corpus
from headlens.models.loading import LoadedModel, load


def peak() -> float:
    """Of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class _MallocInfo(ctypes.Structure):
    """What glibc's mallinfo2 (2.33 or later) gives."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


class InUse:
    """How much memory is handed out, MiB; NaN without glibc."""

    def __init__(self) -> None:
        self.most = float("nan")
        try:
            self._ask = ctypes.CDLL(None).mallinfo2
            self._ask.restype = _MallocInfo
        except (OSError, AttributeError):
            self._ask = None

    def now(self) -> float:
        """At this moment."""
        if self._ask is None:
            return float("nan")
        info = self._ask()
        return (info.uordblks + info.hblkhd) / 2**20

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, `most` becomes the most there was, looked at fifty times a second, beyond what there was before."""
        before, over = self.now(), threading.Event()
        self.most = 0.0

        def watch() -> None:
            while not over.wait(0.02):
                self.most = max(self.most, self.now() - before)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def repeated(treebank: str, first: int, folder: Path) -> str:
    """A treebank of the first so many sentences over and over, 20,000 in all."""
    trees = Path(treebank).read_text(encoding="utf-8").strip().split("\n\n")[:first]
    path = folder / "again.conllu"
    path.write_text("\n\n".join(islice(cycle(trees), 20_000)) + "\n\n", encoding="utf-8")
    return str(path)


def measured(treebank: str, sentences: int, layers: int) -> dict[str, float]:
    """Seconds of every step, and MiB."""
    torch.manual_seed(0)
    tokenizer = load("demo").tokenizer
    config = BertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=1024)
    model = BertModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query.weight" in name or "key.weight" in name:
                parameter.mul_(6)  # random attention is all but even
    switch(model, Entmax())
    loaded = LoadedModel("random", model, tokenizer, None)
    corpus = open_corpus(treebank, CorpusOptions(limit=sentences))
    train, held = split_corpus(corpus, 0.2, sentences)
    assert held is not None
    before, found, used = peak(), {}, InUse()
    with tempfile.TemporaryDirectory() as folder, used.watched():
        begun = time.perf_counter()
        store, other = (collect(loaded, c, Path(folder) / name) for c, name in ((train, "train"), (held, "held")))
        found["collect"] = time.perf_counter() - begun
        found["disk"] = (store.size + other.size) / 2**20
        grid, options = ParameterGrid(), FitOptions()
        for name in ("projections", "all", "graphs"):
            begun = time.perf_counter()
            for site in store.sites()[:layers]:
                if name == "projections":
                    fit_projections(lambda site=site: store.batches(site), options)
                elif name == "all":
                    fitted = fit_site(lambda site=site: store.batches(site), grid, options)
                else:
                    pareto(lambda site=site: other.batches(site), grid, fitted)
            found[name] = (time.perf_counter() - begun) * 6 / layers
    return found | {"memory": peak() - before, "used": used.most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--treebank", required=True)
    parser.add_argument("--sentences", default="250,1000,4000")
    parser.add_argument("--layers", type=int, default=1, help="layers that are measured; times are told of six")
    parser.add_argument("--again", type=int, metavar="N", help="read the first N sentences over and over")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.treebank, options.one, options.layers)))
        return
    columns = (
        "sentences",
        "collect, s",
        "on disk, MiB",
        "projections, s",
        "and clusters, s",
        "540 graphs, s",
        "memory, MiB",
        "in use, MiB",
    )
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as folder:
        treebank = repeated(options.treebank, options.again, Path(folder)) if options.again else options.treebank
        again = [sys.executable, __file__, "--treebank", treebank, "--layers", str(options.layers), "--one"]
        for count in options.sentences.split(","):
            done = subprocess.run([*again, count], check=True, capture_output=True, text=True)
            own = json.loads(done.stdout.splitlines()[-1])
            names = ("collect", "disk", "projections", "all", "graphs", "memory", "used")
            print(f"| {count} | {' | '.join(f'{own[name]:.0f}' for name in names)} |", flush=True)


if __name__ == "__main__":
    main()
