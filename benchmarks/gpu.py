"""Everything that wants a GPU, in one command of nine minutes; prints markdown tables, writes gpu.md and gpu.json.

    python benchmarks/gpu.py --out FOLDER --parts statistics,long  # some parts, of at most four minutes each

    python benchmarks/gpu.py --out FOLDER [--text FILE --source FILE --target FILE]

Each part is a table of its own, written as soon as a row is there: one that fails says why and the next goes on.
Times are those between two events of the device, medians of rounds in which all ways take turns after they warmed up;
memory is the allocator's peak beyond what was held before. Numbers that a table stands on are compared with the
CPU's, and the command ends with exit code 1 if one differs or a part failed. Models have random weights and a
vocabulary learned from the bundled treebank, so that nothing is fetched. `--tiny` runs all parts at tiny sizes on any
machine, as a test does.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import math
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import dam as dam_steps
import inputs
import masks as block_masks
import measure_statistics
import numpy as np
import relevance as relevance_costs
import sparsefinder_blocks
import sweep as head_sweep
import torch
from device_time import milliseconds
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel, PreTrainedModel

import headlens
from headlens.attention.kernels.entmax_rows import entmax_of_rows
from headlens.attention.kernels.row_attention import available, head_divergences
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax, entmax_of_package
from headlens.attention_masks.learned_mask import LearnedMaskOptions
from headlens.corpora.sentence import Example
from headlens.corpora.sources import open_corpus
from headlens.interventions.edited_model import EditedModel
from headlens.learning.gate_training import StochasticGates, gated_sites
from headlens.learning.new_models import wordpiece_tokenizer
from headlens.learning.objectives import MaskedTokenLoss
from headlens.learning.penalized_training import PenalizedObjective
from headlens.metrics.similarity import divergences_by_torch
from headlens.models.loading import LoadedModel
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import OwnEmbedding
from headlens.roles.head_roles import Classification, classify_heads
from headlens.roles.role_options import ClassifyOptions
from headlens.runs.corpus_pass import CorpusReader

PROJECT = Path(__file__).resolve().parents[1]
# Of a part, so that several fit into a short loan of a card.
PART_SECONDS = 240
# Batches of a pass over a corpus: what is done once in a pass, checks of the kernel among it, is no cost of each.
BATCHES = 3
MODES = ("fp32", "tf32", "bf16")
Run = Callable[[], object]


@dataclass
class Table:
    """What a part found.

    Args:
        title: of the table.
        columns: names of the columns.
        rows: cells; numbers, or words.
        checks: what was compared with the CPU or another way: what, the largest difference, what is allowed.
        notes: sentences.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    checks: list[tuple[str, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in self.rows]
        lines += [""] + [
            f"Checked: {what}: {found:.1e}, at most {most:.0e}{'' if found <= most else ' - FAILED'}."
            for what, found, most in self.checks
        ]
        return "\n".join([*lines, *self.notes, ""])


def _cell(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


@dataclass(frozen=True)
class Bench:
    """Where and how large.

    Args:
        device: cuda, or cpu for the tiny sizes.
        tiny: whether sizes are those of a test.
        rounds: how often every way is timed.
        seconds: that the command should take.
        ends: when it should be done, by the clock of `time.monotonic`.
        files: text to train on, or None for the bundled one: books, source and target of translation.
        out: folder of the results.
    """

    device: str
    tiny: bool
    rounds: int
    seconds: float
    ends: float
    files: tuple[Path | None, Path | None, Path | None]
    out: Path

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def config(self, *, positions: int = 512, layers: int | None = None, **more: Any) -> BertConfig:
        """The configuration of BERT-base, or of a model of two layers where the run is a trial of the script."""
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128}
        shape = sizes if self.tiny else {}
        shape |= {} if layers is None else {"num_hidden_layers": layers}
        return BertConfig(
            vocab_size=8000, max_position_embeddings=positions, attn_implementation="sdpa", **shape, **more
        )

    def times(self, ways: dict[str, Run]) -> dict[str, list[float]]:
        """Milliseconds of every way in rounds in which they take turns; nan for one that fails for want of memory."""
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(-2, self.rounds):
            for name, run in ways.items():
                if found[name] and math.isnan(found[name][-1]):
                    continue
                try:
                    took = milliseconds(run, self.device)
                except torch.OutOfMemoryError:
                    found[name], took = [], math.nan
                    torch.cuda.empty_cache()
                if number >= 0 or math.isnan(took):
                    found[name].append(took)
        return found

    def megabytes(self, run: Run) -> float:
        """Peak of memory beyond what was held before; nan where nobody counts it or it does not suffice."""
        if self.device == "cpu":
            return math.nan
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        try:
            run()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return math.nan
        return (torch.cuda.max_memory_allocated() - held) / 2**20


@contextmanager
def matrix_products(mode: str) -> Iterator[None]:
    """float32 products in full precision, or in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def ratios(found: dict[str, list[float]], base: str) -> dict[str, float]:
    """The median of each way's times through those of one way in the same round."""
    return {n: statistics.median(a / b for a, b in zip(t, found[base], strict=False)) for n, t in found.items()}


def reader(model: PreTrainedModel, examples: Sequence[Example]) -> CorpusReader:
    """A way into a model by a vocabulary learned from these sentences."""
    tokenizer = wordpiece_tokenizer((e.source.text for e in examples), 8000, model.config.max_position_embeddings)
    return CorpusReader.of(LoadedModel("random", model, tokenizer, None), examples[0])


def peaked(config: BertConfig) -> BertModel:
    """Random weights large enough that heads look somewhere."""
    torch.manual_seed(0)
    return BertModel(config).eval()


def gpu_tests(bench: Bench) -> list[Table]:
    """The result line of the tests marked `gpu`, with what was skipped or failed, as a table."""
    files = [
        str(p) for p in sorted((PROJECT / "tests").rglob("test_*.py")) if "mark.gpu" in p.read_text(encoding="utf-8")
    ]
    if bench.tiny:
        files = files[:1]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=default",
        *files,
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=PROJECT, check=False)
    (bench.out / "gpu_tests.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    table = Table("Tests marked gpu", ["result"], [[lines[-1] if lines else done.stderr[-300:]]])
    table.notes = [line for line in lines if line.startswith(("SKIPPED", "FAILED", "ERROR"))]
    table.checks = [("exit code of pytest", float(done.returncode), 0.0)]
    return [table]


# What the statistics of tokens, and all of `classify`, may cost in plain passes: by length, bf16 and float32.
GOALS = {
    **{n: {"bf16": (1.25, 1.7), "fp32": (1.1, 1.25)} for n in (128, 512)},
    2048: {"bf16": (1.5, 2.2), "fp32": (1.1, 1.4)},
    **{n: {"bf16": (2.3, 3.4), "fp32": (1.3, 1.7)} for n in (8192, 32768)},
}


def statistics_of_heads(bench: Bench) -> Iterator[Table]:
    """The statistics of `classify` beside a plain forward pass, of BERT-base, by length and type of numbers."""
    return _statistics(bench, (32, 64) if bench.tiny else (128, 512, 2048))


def statistics_of_long_texts(bench: Bench) -> Iterator[Table]:
    """The same of one layer and longer texts."""
    return _statistics(bench, (96,) if bench.tiny else (8192, 16384, 32768))


def _statistics(bench: Bench, lengths: Sequence[int]) -> Iterator[Table]:
    """A table that is given again with each row."""
    ways = ["confidence, positions, entropy", "all of classify"]
    table = Table(
        f"Statistics of all heads in passes of {BATCHES} batches beside plain forward passes with sdpa",
        ["n", "layers x heads", "texts in a batch", "type", "plain, ms a batch", "tokens/s",
         *(f"{w}: {what}" for w in ways for what in ("ratio", "goal")), "plain, MB", *(f"{w}: MB more" for w in ways)],
    )  # fmt: skip
    begun = bench.left
    examples = list(open_corpus("demo"))[: 40 if bench.tiny else None]
    for n in lengths:
        if begun - bench.left > PART_SECONDS - 60 and not bench.tiny:
            table.notes.append(f"n = {n} was left out for want of time.")
            continue
        layers = None if n <= 2048 else 1
        model = peaked(bench.config(positions=n, layers=layers))
        corpus_reader = reader(model, examples)
        texts = inputs.joined(examples * math.ceil(n / 8192), corpus_reader, n)
        texts = texts[: max(1, (128 if bench.tiny else 16384) // n)]
        cpu = _sums(corpus_reader, texts) if n == lengths[0] <= 512 else None
        for mode in MODES:
            model.to(bench.device, torch.bfloat16 if mode == "bf16" else torch.float32)
            with matrix_products(mode), torch.inference_mode():
                batches, kernels = list(corpus_reader.batches(texts, n * len(texts))) * BATCHES, dict[str, list[str]]()
                tokens = sum(int(b.source.real.sum()) for b in batches)
                todo = [
                    measure_statistics.plain_way(corpus_reader),
                    *(measure_statistics.headlens_way(corpus_reader, tier, kernels) for tier in (3, 7)),
                ]
                runs: dict[str, Run] = {
                    name: (lambda way=way, batches=batches: way(batches))
                    for name, way in zip(["plain", *ways], todo, strict=True)
                }
                found = bench.times(runs)
                memory = [bench.megabytes(run) for run in runs.values()]
                median, ratio = statistics.median(found["plain"]), ratios(found, "plain")
                goals = GOALS.get(n, {}).get(mode, ("", ""))
                table.notes += [f"n = {n}, {mode}: {', '.join(sites)}: {how}." for how, sites in kernels.items()]
                shape = f"{model.config.num_hidden_layers} x {model.config.num_attention_heads}"
                table.rows.append(
                    [n, shape, len(texts), mode, median / BATCHES, 1000 * tokens / median,
                     ratio[ways[0]], goals[0], ratio[ways[1]], goals[1],
                     memory[0], *(m - memory[0] for m in memory[1:])]
                )  # fmt: skip
                if cpu is not None:
                    most = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2}[mode]
                    table.checks += [
                        (f"{name}, n = {n}, {mode}, against the CPU in float32", float(np.abs(a - b).max()), most)
                        for (name, a), b in zip(_sums(corpus_reader, texts).items(), cpu.values(), strict=True)
                    ]
                yield table
        del model, corpus_reader
        if bench.device == "cuda":
            torch.cuda.empty_cache()
    yield table


@dataclass(frozen=True)
class _Repeated:
    """The examples of a corpus so many times."""

    examples: Sequence[Example]
    times: int
    name: str = "repeated"

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples * self.times)


def replayed_passes(bench: Bench) -> Iterator[Table]:
    """`classify` of short sentences from the first to its tables, with and without passes as CUDA graphs."""
    table = Table(
        "classify of bundled sentences, from the first to the tables, by --model-args kernel",
        ["sentences", "type", "fast, ms", "graphs, ms", "graphs / fast"],
    )
    examples = list(open_corpus("demo"))[: 30 if bench.tiny else None]
    corpus = _Repeated(examples, 1 if bench.tiny else 10000 // len(examples))
    model = peaked(bench.config())
    loaded = LoadedModel("random", model, reader(model, examples).encoder.tokenizer, None)
    for mode in MODES:
        model.to(bench.device, torch.bfloat16 if mode == "bf16" else torch.float32)
        made = dict[str, Classification]()

        def run(kernel: Literal["fast", "graphs"], made: dict[str, Classification] = made) -> None:
            made[kernel] = classify_heads(loaded, corpus, ClassifyOptions(kernel=kernel))

        with matrix_products(mode):
            found = bench.times({"fast": lambda: run("fast"), "graphs": lambda: run("graphs")})
        times = [statistics.median(found[kernel]) for kernel in ("fast", "graphs")]
        table.rows.append([len(examples) * corpus.times, mode, *times, ratios(found, "fast")["graphs"]])
        table.notes += [f"{mode}: {how}: {', '.join(shapes)}." for how, shapes in made["graphs"].kernels.items()]
        confidence, other = (made[kernel].tables["heads"].rows["confidence"] for kernel in ("graphs", "fast"))
        apart = float((confidence - other).abs().max())
        table.checks.append((f"confidence by graphs, {mode}", apart, {"fp32": 1e-5, "tf32": 5e-3, "bf16": 5e-2}[mode]))
        yield table


def _sums(corpus_reader: CorpusReader, texts: list[Example]) -> dict[str, np.ndarray[Any, Any]]:
    """Mean confidence and entropy of every head, and the share of the commonest offset."""
    with torch.inference_mode():
        found = measure_statistics.headlens_way(corpus_reader, 3)(corpus_reader.batches(texts, 10**6))
    sums = measure_statistics.as_sums(found, corpus_reader)
    counted = np.maximum(sums.offsets.sum(-1), 1)
    return {
        "confidence": sums.peaks / sums.tokens,
        "entropy": sums.entropies / sums.tokens,
        "share of the commonest offset": sums.offsets.max(-1) / counted,
    }


def head_removal(bench: Bench) -> list[Table]:
    """The sweep over all heads beside a full pass for every head."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(bench.config()).eval().to(bench.device)
    table = Table(
        "Every head ablated once: the sweep beside a full pass for each head",
        ["texts x tokens", "heads", "sweep, ms", "full passes, ms", "full passes / sweep", "by operations"],
    )
    heads = model.config.num_hidden_layers * model.config.num_attention_heads
    for rows, length in ((2, 16),) if bench.tiny else ((64, 24), (16, 128), (4, 512)):
        ids = torch.randint(5, 8000, (rows, length), device=bench.device)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        each = model.config.num_attention_heads if bench.tiny else 3
        found = bench.times(
            {
                "sweep": lambda batch=batch: head_sweep.ours(model, [batch], None),
                "full": lambda batch=batch, each=each: head_sweep.full_passes(model, [batch], each),
            }
        )
        whole = [t * model.config.num_attention_heads / each for t in found["full"]]
        ratio = ratios({"sweep": found["sweep"], "full": whole}, "sweep")["full"]
        medians = statistics.median(found["sweep"]), statistics.median(whole)
        table.rows.append([f"{rows} x {length}", heads, *medians, ratio, head_sweep.operations(model, batch)])
        table.checks.append(
            (f"{rows} x {length}, sweep against full passes", head_sweep.difference(model, batch), 1e-3)
        )
    return [table]


def relevance_of_heads(bench: Bench) -> list[Table]:
    """Relevance of all heads beside a forward and backward pass."""
    torch.manual_seed(0)
    model = BertModel(bench.config()).eval().to(bench.device)
    table = Table(
        "Relevance of all heads beside a plain forward and backward pass",
        ["texts x tokens", "way", "ms", "/ forward + backward"],
    )
    for rows, length in ((2, 16),) if bench.tiny else ((64, 24), (128, 128), (32, 512)):
        ids = torch.randint(5, 8000, (rows, length), device=bench.device)
        batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]
        with ExitStack() as undo:
            found = bench.times(relevance_costs.contenders(model, batches, undo))
        for name, ratio in ratios(found, "forward + backward").items():
            table.rows.append([f"{rows} x {length}", name, statistics.median(found[name]), ratio])
    small = {name: tensor[:2, :16] for name, tensor in batches[0].items()}
    here, there = (_relevances(model.to(device), small) for device in (bench.device, "cpu"))
    table.checks.append(("relevance of every head, share of the largest, against the CPU", _apart(here, there), 1e-3))
    return [table]


def _relevances(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Relevance of every head, (layers x heads,)."""
    with RelevanceSession(copy.deepcopy(model), OwnEmbedding(), "attnlrp") as session:
        found = session.relevance({name: tensor.to(model.device) for name, tensor in batch.items()})
    return torch.cat([torch.as_tensor(part).double().cpu().flatten() for part in found.raw.values()])


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def training_steps(bench: Bench) -> list[Table]:
    """Steps with learned masks, gates and entmax beside plain ones."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    model = BertForMaskedLM(bench.config(**none)).to(bench.device)
    table = Table(
        "A step of training, forward, backward and AdamW, beside a plain one",
        ["texts x tokens", "type", "step", "ms", "/ plain"],
    )
    for rows, length in ((2, 16),) if bench.tiny else ((128, 128), (32, 512)):
        data = dam_steps.batch(rows, length, padded=False, words=8000)
        batch = {name: tensor.to(bench.device) for name, tensor in data.items()}
        for mode in ("fp32", "bf16") if length < 512 else ("bf16",):
            cast = torch.autocast(bench.device, torch.bfloat16) if mode == "bf16" else nullcontext()
            with ExitStack() as undo:
                undo.enter_context(cast)
                ways: dict[str, Run] = {
                    "plain": dam_steps.plain(model, batch),
                    "DAM_u": dam_steps.dam(model, batch, LearnedMaskOptions(length), undo),
                    "DAM_s": dam_steps.dam(model, batch, LearnedMaskOptions(length, structured=True), undo),
                    "gates": _gates(model, batch, undo),
                    "entmax 1.5": _entmax(model, batch),
                }
                found = bench.times(ways)
            for name, ratio in ratios(found, "plain").items():
                table.rows.append([f"{rows} x {length}", mode, name, statistics.median(found[name]), ratio])
    return [table]


def _gates(model: BertForMaskedLM, batch: dict[str, Tensor], undo: ExitStack) -> Run:
    own = copy.deepcopy(model)
    gated = EditedModel(own, StochasticGates(gated_sites(own))).train()
    undo.enter_context(gated.opened())
    objective = PenalizedObjective(MaskedTokenLoss(), gated.edit, 0.1, "mean")
    return dam_steps.stepper(gated, lambda: objective.loss(gated, batch), {"gates.": 1.0})


def _entmax(model: BertForMaskedLM, batch: dict[str, Tensor]) -> Run:
    own = copy.deepcopy(model).train()
    switch(own, Entmax())
    return dam_steps.stepper(own, lambda: MaskedTokenLoss().loss(own, batch), {})


def kernels_alone(bench: Bench) -> list[Table]:
    """Kernels of entmax and of divergences beside the package and torch, which they take the place of."""
    table = Table(
        "Kernels beside what they take the place of, float32",
        ["work", "size", "without the kernel, ms", "kernel, ms", "times faster"],
    )
    refusal = available(torch.device(bench.device))
    table.notes += [f"No kernel: {refusal}; it is left out."] * bool(refusal)

    def add(work: str, shape: Sequence[int], plain: Run, kernel: Run | None) -> None:
        found = bench.times({"plain": plain} | ({} if kernel is None else {"kernel": kernel}))
        plain_ms, kernel_ms = statistics.median(found["plain"]), statistics.median(found.get("kernel", [math.nan]))
        table.rows.append([work, " x ".join(map(str, shape)), plain_ms, kernel_ms, plain_ms / kernel_ms])

    generator = torch.Generator().manual_seed(0)
    for shape in ((2, 2, 8, 16),) if bench.tiny else ((64, 12, 128, 128), (8, 12, 512, 512), (2, 12, 2048, 2048)):
        scores = (2 * torch.randn(shape, generator=generator)).to(bench.device).requires_grad_()
        learned = torch.linspace(1.1, 1.9, shape[1], device=bench.device)[:, None, None].requires_grad_()
        for name, alpha in (("1.5", 1.5), ("learned", learned)):

            def step(entmax: Callable[[Tensor, Any], Tensor], alpha: Any = alpha, scores: Tensor = scores) -> None:
                entmax(scores, alpha).square().sum().backward()  # type: ignore[no-untyped-call]

            kernel = None if refusal else partial(step, entmax_of_rows)
            add(f"entmax {name}, forward and backward", shape, partial(step, entmax_of_package), kernel)
            few = scores.detach()[:1, :, :4]
            exact = entmax_of_package(few.cpu().double(), alpha if name == "1.5" else learned.detach().cpu().double())
            ours = (entmax_of_package if refusal else entmax_of_rows)(few, alpha).detach().cpu()
            table.checks.append((f"entmax {name} of {shape[-1]} keys against float64", _apart(ours, exact), 1e-4))
    for shape in ((4, 3, 8),) if bench.tiny else ((144, 104, 128), (144, 16, 512)):
        rows = (3 * torch.randn(shape, generator=generator)).softmax(2).to(bench.device)
        kernel = None if refusal else partial(head_divergences, rows)
        add("Jensen-Shannon divergences of all heads", shape, partial(divergences_by_torch, rows), kernel)
        ours = (divergences_by_torch if refusal else head_divergences)(rows).cpu()
        exact = divergences_by_torch(rows.cpu().double())
        table.checks.append((f"divergences of {shape[0]} heads against float64", _apart(ours, exact), 1e-4))
    return [table]


def fixed_masks(bench: Bench) -> list[Table]:
    """Attention of the open blocks of fixed masks beside dense attention."""
    lengths = () if bench.device == "cpu" else (1024, 4096)
    columns = ["n", "mask", "blocks closed", "dense, ms", "dense with the mask, ms", "blocks, ms", "dense, MB",
               "dense with the mask, MB", "blocks, MB", "dense / blocks", "ideal", "share of the ideal"]  # fmt: skip
    table = Table("Fixed masks as block-sparse attention, forward and backward, bf16", columns)
    for n in lengths:
        for row in block_masks.timed(n, bench.rounds, ("window:3", "longformer", "logsparse")):
            opened = 1 - float(str(row[2]).rstrip("%")) / 100
            table.rows.append([*row, 1 / opened, float(str(row[-1])) * opened])
    if not lengths:
        table.notes.append("Blocks are a GPU's: here nothing was timed.")
    return [table]


def predicted_blocks(bench: Bench) -> list[Table]:
    """Sparsefinder's blocks beside dense attention."""
    table = Table(
        f"Sparsefinder on blocks of 128, predicting them included, forward, bf16, {sparsefinder_blocks.TEXTS} texts",
        ["n", "blocks that meet", "dense sdpa, ms", "blocks, ms", "dense / blocks"],
    )
    if bench.device == "cpu":
        table.notes.append("Blocks are a GPU's: here nothing was timed.")
        return [table]
    table.rows += [sparsefinder_blocks.times(n, bench.rounds) for n in (1024, 4096, 8192)]
    return [table]


def translation(bench: Bench) -> list[Table]:
    """A Transformer of 6+6 layers (Vaswani et al. 2017), trained for as long as there is time."""
    _, source, target = bench.files
    if source is None or target is None:
        source, target = _reversed(bench.out)
    share = 10.0 if bench.tiny else min(bench.seconds / 4, bench.left / 2)
    options: dict[str, Any] = {
        "corpus": str(source), "target": str(target), "vocabulary": 300 if bench.tiny else 8000, "learning_rate": 7e-4,
        "schedule": "inverse-sqrt", "batch_tokens": 256 if bench.tiny else 8192, "precision": "bf16", "longest": 64,
        "warmup": 2 if bench.tiny else 400, "log_every": 1 if bench.tiny else 50, "evaluate_every": 10**6,
        "dev_share": 0.2 if bench.tiny else 0.03,
    }  # fmt: skip
    model, steps = ("new:marian-tiny", (1, 2, 3)) if bench.tiny else ("new:marian-base", (20, 120, None))

    def train(*, last: bool, **more: Any) -> Any:
        # Sentences that are written for BLEU take longer than so few updates.
        return headlens.train(model, "translation", **options, **more, bleu=1 if not last else 4 if bench.tiny else 500)

    return _trained(bench, "A Transformer-MT trained", share, train, steps)


def _reversed(out: Path) -> tuple[Path, Path]:
    """A translation that can be learned: the same words from last to first."""
    sentences = [e.source.text.split() for e in open_corpus("demo")]
    files = out / "source.txt", out / "target.txt"
    files[0].write_text("\n".join(" ".join(s) for s in sentences), encoding="utf-8")
    files[1].write_text("\n".join(" ".join(s[::-1]) for s in sentences), encoding="utf-8")
    return files


def dam_pre_training(bench: Bench) -> list[Table]:
    """A BERT-base pre-trained with structured masks."""
    text = bench.files[0]
    share = 10.0 if bench.tiny else min(bench.seconds / 4, bench.left - 20)
    options: dict[str, Any] = {
        "corpus": "demo" if text is None else str(text), "vocabulary": 300 if bench.tiny else 8000, "structured": True,
        "lambdas": (1e-3,), "batch_tokens": 256 if bench.tiny else 16384, "longest": 16 if bench.tiny else 128,
        "precision": "bf16", "learning_rate": 1e-4, "log_every": 1 if bench.tiny else 50,
    }  # fmt: skip
    model, steps = ("new:bert-tiny", (1, 2, 3)) if bench.tiny else ("new:bert-base", (10, 40, None))

    def train(*, last: bool, **more: Any) -> Any:
        del last
        return headlens.train_dam(model, "mlm", **options, **more)

    return _trained(bench, "DAM pre-training", share, train, steps)


def _trained(
    bench: Bench, title: str, seconds: float, train: Callable[..., Any], steps: tuple[int, int, int | None]
) -> list[Table]:
    """Two short runs tell what a step takes, a third one uses the time that there is."""
    took = []
    for number in steps[:2]:
        begun = time.monotonic()
        train(steps=number, device=bench.device, figures=False, last=False)
        took.append(time.monotonic() - begun)
    step = max((took[1] - took[0]) / (steps[1] - steps[0]), 1e-4)
    rest = seconds - sum(took) - took[0]
    number = steps[2] or max(steps[1], int(0.8 * rest / step))
    begun = time.monotonic()
    result = train(steps=number, device=bench.device, figures=False, seed=1, last=True)
    table = Table(f"{title} for {number} updates", ["updates", "seconds", "updates/s in between"])
    table.rows.append([number, time.monotonic() - begun, 1 / step])
    tables = [table]
    for name in ("metrics", "sparsity", "evaluations"):
        if name in result.tables:
            rows = result.tables[name].head(12)
            tables.append(
                Table(f"{title}: {name}", list(rows.columns), [list(r) for r in rows.itertuples(index=False)])
            )
    log = result.tables.get("log")
    if log is not None:
        last = [float(x) for x in log["loss"].tolist()]
        table.notes.append(f"Loss from {last[0]:.3f} to {last[-1]:.3f}.")
        table.checks.append(("the loss is finite", float(not np.isfinite(last).all()), 0.0))
    return tables


PARTS: dict[str, Callable[[Bench], Iterable[Table]]] = {
    "tests": gpu_tests,
    "statistics": statistics_of_heads,
    "graphs": replayed_passes,
    "long": statistics_of_long_texts,
    "sweep": head_removal,
    "relevance": relevance_of_heads,
    "steps": training_steps,
    "kernels": kernels_alone,
    "masks": fixed_masks,
    "blocks": predicted_blocks,
    "translation": translation,
    "dam": dam_pre_training,
}


def machine(device: str) -> str:
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", "transformers", "numpy"))
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return f"{time.strftime('%Y-%m-%d')}, {name}, Python {platform.python_version()}, {versions}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu.md, gpu.json and logs")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, on the CPU where there is no GPU")
    parser.add_argument("--seconds", type=float, default=530, help="when to be done")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, in this order")
    parser.add_argument("--text", type=Path, help="text to pre-train on")
    parser.add_argument("--source", type=Path, help="sentences to translate")
    parser.add_argument("--target", type=Path, help="their translations")
    return parser.parse_args()


def write(
    out: Path, done: str, name: str, tables: Sequence[Table], seconds: float, found: dict[str, dict[str, Any]]
) -> str:
    """Writes what was done before and the tables of a part so far; returns the Markdown of the part."""
    part = "\n".join(t.markdown() for t in tables) + f"\n({name}: {seconds:.0f} s)\n"
    found["parts"][name] = {"seconds": seconds, "tables": [vars(t) for t in tables]}
    (out / "gpu.md").write_text(done + "\n" + part, encoding="utf-8")
    (out / "gpu.json").write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")
    return part


def main() -> None:
    """Runs the parts that were asked for while there is time, and prints and writes their tables."""
    options = arguments()
    if not (options.tiny or torch.cuda.is_available()):
        sys.exit("No GPU. --tiny shows that all parts run.")
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds = 1 if options.tiny else options.rounds
    files = options.text, options.source, options.target
    ends = time.monotonic() + options.seconds
    bench = Bench(device, options.tiny, rounds, options.seconds, ends, files, options.out)
    found: dict[str, Any] = {"machine": machine(device), "parts": {}}
    done, failed = f"{found['machine']}\n", []
    print(done, flush=True)
    for name in options.parts.split(","):
        begun, tables = time.monotonic(), []
        try:
            for table in PARTS[name](bench):
                tables += [table] if table not in tables else []
                write(bench.out, done, name, tables, time.monotonic() - begun, found)
            failed += [name for t in tables for _, difference, most in t.checks if not difference <= most]
        except Exception as error:
            tables.append(Table(f"{name}: failed", ["error"], [[f"{type(error).__name__}: {str(error)[:300]}"]]))
            (options.out / f"{name}.error").write_text(traceback.format_exc(), encoding="utf-8")
            failed.append(name)
        part = write(bench.out, done, name, tables, time.monotonic() - begun, found)
        print(part, flush=True)
        done += "\n" + part
    if failed:
        sys.exit(f"Failed: {', '.join(dict.fromkeys(failed))}")


if __name__ == "__main__":
    main()
