"""What stands in the place of a head's output in the modes resample, counterfactual and optimal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import BatchTokens, real_tokens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, counted
from headlens.memory import SplitWhenOutOfMemory
from headlens.replay.head_ablation import Replay
from headlens.replay.other_outputs import LossBatch, at_same_positions, optimal_constants
from headlens.replay.replacement import HeadMeans
from headlens.runs.processes import ALONE, Processes
from headlens.statistics.seeding import generator_of
from headlens.tasks.evaluation import token_count
from headlens.tasks.task import PreparedExample
from headlens.tasks.task_examples import Chosen, Examples, ranking_part

EPOCHS = 10  # in which constants are fitted
_FEWEST = 8  # examples that can be halved
_TOKENS = 4096  # of a batch that goes through a model once
# What can stand in for the head outputs of a batch, by site, given how many queries each site has.
StandIns = Callable[[Replay, Sequence[PreparedExample], Mapping[Site, int]], Mapping[Site, Tensor]]


def other_examples(examples: Examples, seed: int) -> tuple[PreparedExample, ...]:
    """Returns another example for every one: each stands in for one, and none for itself; equal seeds give the same.

    Raises:
        OptionError: if there is only one.
    """
    if len(examples) < 2:
        raise OptionError("--mode resample takes head outputs from other examples, and there is one.", "Give more.")
    order = sorted(range(len(examples)), key=lambda i: generator_of(f"{i}", seed).random())
    other = dict(zip(order, [*order[1:], order[0]], strict=True))
    return tuple(examples.prepared[other[i]] for i in range(len(examples)))


def changed_examples(examples: Examples, changed: Examples) -> tuple[PreparedExample, ...]:
    """Returns every example with its changed text, by its place among the rows of the data.

    Raises:
        OptionError: if there are not as many, or one is its original or does not have as many tokens.
    """
    if len(examples) != len(changed):
        raise OptionError(
            f"--pairs has {counted(len(changed), 'example')} that the model reads, and the data {len(examples)}.",
            "Give a changed text for each example, in the same order.",
        )
    together = list[PreparedExample]()
    for one, other in zip(examples.prepared, changed.prepared, strict=True):
        if one.example.id != other.example.id:
            raise OptionError(
                f"The row {other.example.id} of --pairs would stand for {one.example.id} of the data.",
                "Leave out of both what the model cannot read.",
            )
        lengths = [[len(row.ids) for row in p.rows] for p in (one, other)]
        if lengths[0] != lengths[1]:
            raise OptionError(
                f"The changed text of example {one.example.id} has {sum(lengths[1])} tokens, and its original "
                f"{sum(lengths[0])}.",
                "Replace words by others of as many tokens, so that positions correspond (Zhang and Nanda 2024).",
            )
        # What is to be said stays that of the data.
        rows = [replace(row, labels=own.labels) for own, row in zip(one.rows, other.rows, strict=True)]
        together.append(replace(one, rows=tuple(rows)))
    same = [one for one, other in zip(examples.prepared, together, strict=True) if one.rows == other.rows]
    if same:
        raise OptionError(
            f"{len(same)} of the {counted(len(together), 'text')} of --pairs are those of the data, unchanged; the "
            f"first is that of {same[0].example.id}.",
            "Leave them out of both: heads whose input is the same give the same.",
        )
    return tuple(together)


@dataclass(frozen=True)
class FromOtherExamples:
    """The head outputs on other examples, at the same positions; at the last one behind the end of a shorter text.

    Args:
        network: that the task runs.
        examples: whose heads are taken out.
        donors: an example for each of these.
    """

    network: PreTrainedModel
    examples: Examples
    donors: Sequence[PreparedExample]

    def __call__(
        self, replay: Replay, batch: Sequence[PreparedExample], queries: Mapping[Site, int]
    ) -> Mapping[Site, Tensor]:
        """Runs the model on the donors of a batch."""
        task, donors = self.examples.task, [self.donors[p.index] for p in batch]
        collated = task.collate(donors, self.examples.reader, self.network.device)
        outputs = replay.run(task.inputs(self.network, collated)).head_outputs
        tokens, lengths = batch_tokens(self.network, collated.inputs), dict[Site, Tensor]()
        for site, output in outputs.items():
            own, _ = tokens.of(site)
            whole = torch.full((len(output),), output.shape[1], device=output.device)
            lengths[site] = whole if own is None else own.real.sum(1)
        rows, first = list[int](), 0
        for one, donor in zip(batch, donors, strict=True):
            rows += [first + number % len(donor.rows) for number in range(len(one.rows))]
            first += len(donor.rows)
        return at_same_positions(outputs, lengths, rows, queries)


@dataclass(frozen=True)
class BestConstants:
    """Constants that were fitted on the half of the examples that a text is not of.

    Args:
        constants: fitted outside of the half, and on it, (heads, d) by site.
        half: which examples are of it, (n,); they get the first, the others the second.
    """

    constants: tuple[Mapping[Site, Tensor], Mapping[Site, Tensor]]
    half: Chosen

    @classmethod
    def fitted(cls, network: PreTrainedModel, examples: Examples, seed: int) -> BestConstants:
        """Fits the constants of all heads on either half, see `optimal_constants`.

        Raises:
            OptionError: if there are too few examples, or the task has no losses.
        """
        if len(set(examples.keys)) < _FEWEST:
            raise OptionError(
                "--mode optimal fits constants on one half of the examples and measures on the other; "
                f"{counted(len(examples), 'example')} are too few.",
                "Give more --data.",
            )
        half = ranking_part(examples.keys, 0.5, seed)
        on_others, on_these = (_constants_of(network, examples.part(chosen), seed) for chosen in (~half, half))
        return cls((on_others, on_these), half)

    def __call__(
        self, replay: Replay, batch: Sequence[PreparedExample], queries: Mapping[Site, int]
    ) -> Mapping[Site, Tensor]:
        """The constants for each row of a batch, (rows, 1, heads, d) by site."""
        del replay
        of_rows = [int(not self.half[p.index]) for p in batch for _ in p.rows]
        return {site: torch.stack([self.constants[n][site] for n in of_rows])[:, None] for site in queries}


def _constants_of(network: PreTrainedModel, examples: Examples, seed: int) -> dict[Site, Tensor]:
    task = examples.task.differentiable
    means = mean_outputs(network, examples, examples.batches(_TOKENS))

    def batches(epoch: int) -> Iterator[LossBatch]:
        prepared = list(examples.prepared)
        np.random.default_rng([seed, epoch]).shuffle(prepared)
        for batch in replace(examples, prepared=tuple(prepared)).batches(_TOKENS):
            collated = task.collate(batch, examples.reader, network.device)
            losses = partial(task.losses, batch=collated)
            inputs = task.inputs(network, collated)
            yield inputs, [len(p.rows) for p in batch], losses, batch_tokens(network, collated.inputs)

    return optimal_constants(network, means, batches, EPOCHS, seed)


def mean_outputs(
    network: PreTrainedModel,
    examples: Examples,
    batches: Iterable[Sequence[PreparedExample]],
    warn: Callable[[str], None] = lambda _: None,
    processes: Processes = ALONE,
) -> dict[Site, Tensor]:
    """Mean head outputs over the real tokens of the examples of all processes, (heads, d) by site.

    Args:
        network: that the task runs.
        examples: for their task and reader.
        batches: of the examples of this process.
        warn: called with what the user should know at once.
        processes: that share the examples.
    """
    task, means = examples.task, HeadMeans()
    with AttentionSession(network, observers=[means]) as session, torch.inference_mode():

        def run(prepared: Sequence[PreparedExample]) -> int:
            batch = task.collate(prepared, examples.reader, network.device)
            with session.batch(batch_tokens(network, batch.inputs)):
                network(**task.inputs(network, batch))
            return len(prepared)

        in_parts = SplitWhenOutOfMemory(network.device, run, add, token_count, warn)
        for prepared in batches:
            in_parts(prepared)
    for rank, part in enumerate(processes.gather(means.totals.arrays())):
        if rank != processes.rank:
            means.totals.add_arrays(part)
    return means.means(find_sites(network))


def batch_tokens(network: PreTrainedModel, inputs: Mapping[str, Tensor]) -> BatchTokens:
    """Finds the real tokens of a batch, (batch, tokens) for each stack, by the attention masks of its inputs."""
    source, target = (
        real_tokens(inputs.get(f"{side}attention_mask"), inputs.get(f"{side}input_ids")) for side in ("", "decoder_")
    )
    decoder_only = {s.stack for s in find_sites(network)} == {"decoder"}
    return BatchTokens(decoder=source) if decoder_only else BatchTokens(source, target)
