"""Head outputs that stand in the place of others: those on another text, and constants that cost a task least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import BatchTokens, CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import ModelError
from headlens.heads import Head
from headlens.models.freezing import frozen

_STEP = 0.05  # of an update, in units of the size of a head's output


def at_same_positions(
    outputs: Mapping[Site, Tensor], lengths: Mapping[Site, Tensor], rows: Sequence[int], queries: Mapping[Site, int]
) -> dict[Site, Tensor]:
    """Head outputs on some texts for others, at the same positions: (len(rows), queries, heads, d) by site.

    Behind the end of a shorter text stand those at its last token.

    Args:
        outputs: on the texts that stand in, (their rows, their queries, heads, d) by site.
        lengths: how many tokens each of them has, (their rows,) by site.
        rows: which of their rows stands in for each row of the others.
        queries: how many positions the others have, by site.
    """
    found = {}
    for site, output in outputs.items():
        chosen = output[list(rows)]
        last = (lengths[site][list(rows)] - 1).clamp_min(0)
        places = torch.arange(queries[site], device=output.device)
        places = torch.minimum(places, last[:, None])  # (rows, queries)
        found[site] = chosen.gather(1, places[..., None, None].expand(-1, -1, *chosen.shape[2:]))
    return found


class ConstantOutputs(Edit):
    """Replaces the output of one head in every row by a constant, which may carry gradients.

    Args:
        constants: (heads, d) by site.
        head_of_row: which head is replaced in which row.
    """

    def __init__(self, constants: Mapping[Site, Tensor], head_of_row: Sequence[Head]) -> None:
        self._constants, self._head_of_row = constants, head_of_row

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs, (batch, query, heads, d), with the constants in their places."""
        site = context.site
        chosen = torch.tensor([[head == other for other in site.heads] for head in self._head_of_row])
        if site not in self._constants or not chosen.any():
            return output
        # In every position of a row.
        mask = chosen[:, None, :, None].to(output.device)
        return torch.where(mask, self._constants[site].to(output)[None, None], output)


# A batch of some examples: the arguments of the model, the rows of each example, losses (examples,) of outputs, tokens.
LossBatch = tuple[Mapping[str, Any], Sequence[int], Callable[[Any], Tensor], BatchTokens]


def optimal_constants(
    model: PreTrainedModel,
    means: Mapping[Site, Tensor],
    batches: Callable[[int], Iterable[LossBatch]],
    epochs: int,
    seed: int,
) -> dict[Site, Tensor]:
    """Fits for every head the constant that costs a task least in its place (optimal ablation, Li and Janson 2024).

    Every constant starts at the mean output of its head and follows the gradient (Adam, in units of the size of the
    output, with a step that falls to 0). In each pass every row is without one head, drawn evenly, so that one backward
    pass serves as many heads as there are rows; heads do not meet.

    Args:
        model: in evaluation mode; its parameters are left as they are.
        means: (heads, d) by site, as `headlens.replay.replacement.HeadMeans` gives them.
        batches: of the examples, given the number of the epoch.
        epochs: how often the examples are passed.
        seed: of the draws.

    Returns:
        (heads, d) by site, in double precision on the CPU.

    Raises:
        ModelError: if a loss is not finite.
    """
    device, generator = model.device, torch.Generator().manual_seed(seed)
    start = {site: mean.to(device, torch.float32) for site, mean in means.items()}
    scale = {site: mean.pow(2).mean().sqrt().clamp_min(1e-6) for site, mean in start.items()}
    moved = {site: torch.zeros_like(mean, requires_grad=True) for site, mean in start.items()}
    heads = [head for site in means for head in site.heads]
    optimizer = Adam(moved.values(), lr=_STEP)
    waiting: list[Head] = []
    with frozen(model), torch.inference_mode(mode=False), torch.enable_grad():
        for epoch in range(epochs):
            for group in optimizer.param_groups:
                group["lr"] = _STEP * (1 - epoch / epochs)
            for inputs, rows, losses, tokens in batches(epoch):
                while len(waiting) < len(rows):
                    waiting += [heads[n] for n in torch.randperm(len(heads), generator=generator).tolist()]
                taken, waiting = waiting[: len(rows)], waiting[len(rows) :]
                constants = {site: start[site] + scale[site] * moved[site] for site in start}
                of_rows = [head for head, number in zip(taken, rows, strict=True) for _ in range(number)]
                with AttentionSession(model, edits=[ConstantOutputs(constants, of_rows)]) as session:
                    with session.batch(tokens):
                        loss = losses(model(**inputs)).sum()
                    if not torch.isfinite(loss):
                        raise ModelError("A loss is not finite while constants are fitted.", "Use another --mode.")
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return {site: (start[site] + scale[site] * moved[site]).detach().double().cpu() for site in start}
