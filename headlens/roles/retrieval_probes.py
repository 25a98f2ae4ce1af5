"""Heads that find what a question asks for: retrieval (Wu et al. 2024), query-focused retrieval (Zhang et al. 2025)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.roles.needle_prompts import DocumentRun, NeedleRun
from headlens.weights.head_slicing import head_contributions

RECALLED = 0.5  # share of the answer's tokens that must be generated for a run to count (Wu et al. 2024)
_DEVIATIONS = 2.0  # below the mean of its document a token is left out (Zhang et al. 2025)
_RANKS = 10
# By site and name: (heads,) of one pass, and of every group of runs (groups, heads).
HeadNumbers = dict[Site, dict[str, npt.NDArray[np.float64]]]


@dataclass
class _Reduced(Observer):
    """Keeps numbers of one pass by site: of weights, (heads, query, key), and of the call that has them."""

    reduce: Callable[[Tensor, AttentionCall], dict[str, Tensor]]
    found: HeadNumbers = field(default_factory=dict)
    needs_weights: bool = True

    def observe(self, call: AttentionCall) -> None:
        """Reduces the weights of a call; of rows with a learned sink those over tokens."""
        assert call.distribution is not None
        numbers = self.reduce(call.distribution[0], call)
        self.found[call.site] = {name: value.double().cpu().numpy() for name, value in numbers.items()}


def _read(
    model: PreTrainedModel, ids: Sequence[int], reduce: Callable[[Tensor, AttentionCall], dict[str, Tensor]]
) -> HeadNumbers:
    """Numbers of every head, (heads,) each by site and name, of one pass over some tokens."""
    observer, tensor = _Reduced(reduce), torch.tensor([list(ids)], device=model.device)
    with AttentionSession(model, observers=[observer]), torch.inference_mode():
        model(input_ids=tensor, attention_mask=torch.ones_like(tensor), use_cache=False)
    return observer.found


def measure_retrieval(
    model: PreTrainedModel, runs: Sequence[NeedleRun], unembedding: Tensor | None = None
) -> tuple[HeadNumbers, int]:
    """Measures how often heads look at the very token that is copied from a long text (Wu et al. 2024).

    The model answers greedily. A step is a hit of a head if the token that it attends to most from the place that
    generates is part of the answer in the text, and is the token that is generated; each token of the answer counts
    once. Runs in which at most half of the answer's tokens are generated do not count.

    Args:
        model: a decoder.
        runs: the prompts, see `headlens.roles.needle_prompts.make_needle_runs`; tokens of any other prompts will do.
        unembedding: (vocabulary, features), for `copying`; None leaves it out.

    Returns:
        By site, means of every group over its runs that count, (groups, heads): `hits`, the share of the answer's
        tokens; `hits_most`, of the steps that copy, the share whose most attended token is in the answer; `decoy_hits`
        and `decoy_hits_most`, the same of the answer to another question; `hits_even`, what a key chosen at random
        hits; `copying`, the share of steps that copy at which the head raises, of all tokens of the answer, the logit
        of the right one most. And how many runs count.
    """
    counted: dict[int, list[HeadNumbers]] = {}
    for run in runs:
        written = _written(model, run)
        if recall(run.answer, written) <= RECALLED:
            continue
        found = _read(model, [*run.ids, *written], _hits_of(model, run, written, unembedding))
        counted.setdefault(run.group, []).append(found)
    return _by_group(counted), sum(map(len, counted.values()))


def _written(model: PreTrainedModel, run: NeedleRun) -> tuple[int, ...]:
    """The tokens that a model generates greedily after a prompt, up to the end of the text."""
    ids = torch.tensor([run.ids], device=model.device)
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    with torch.inference_mode():
        made = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=run.longest,
            pad_token_id=next(iter(ends)) if isinstance(ends, list) else ends,
        )
    return tuple(made[0, ids.shape[1] :].tolist())


def recall(answer: Sequence[int], written: Sequence[int]) -> float:
    """The share of an answer's tokens that are written, each as often as it is in the answer (ROUGE-1 recall)."""
    return sum((Counter(answer) & Counter(written)).values()) / len(answer)


def _hits_of(
    model: PreTrainedModel, run: NeedleRun, written: Sequence[int], unembedding: Tensor | None
) -> Callable[[Tensor, AttentionCall], dict[str, Tensor]]:
    ids = torch.tensor([*run.ids, *written], device=model.device)
    queries = torch.arange(len(run.ids) - 1, len(ids) - 1, device=model.device)
    generated = ids[queries + 1]

    def reduce(weights: Tensor, call: AttentionCall) -> dict[str, Tensor]:
        most = weights[:, queries].argmax(-1)  # (heads, steps)
        output = call.output[0]  # (query, heads, d)
        needle = ids[run.needle.start : run.needle.stop]
        copied = torch.isin(generated, needle)
        found = {}
        for name, span in (("", run.needle), ("decoy_", run.decoy)):
            inside = (most >= span.start) & (most < span.stop)
            found[f"{name}hits_most"] = inside[:, copied].double().mean(-1)
            hit = most[..., None] == torch.arange(span.start, span.stop, device=most.device)  # (heads, steps, tokens)
            found[f"{name}hits"] = (hit & (ids[most] == generated)[..., None]).any(1).double().mean(-1)
        # A token is missed by a key chosen at random, of those in sight, at all steps that generate it.
        seen = torch.ones(len(ids), len(ids), dtype=torch.bool, device=ids.device).tril()
        seen = (seen if call.allowed is None else seen & call.allowed[0, 0])[queries]
        hit_by_chance = (seen[:, run.needle.start : run.needle.stop] / seen.sum(-1, keepdim=True)).double()
        missed = torch.where(generated[:, None] == needle, 1 - hit_by_chance, 1.0).prod(0)
        found["hits_even"] = (1 - missed.mean()).expand(len(most))
        found["copying"] = torch.full((len(most),), torch.nan)
        added = None if unembedding is None else head_contributions(model, call.site.module, output[queries[copied]])
        if unembedding is not None and added is not None and added.shape[-1] == unembedding.shape[1]:
            # On the direct path, without the final normalisation: (steps, heads, tokens).
            logits = added @ unembedding[needle].to(added.dtype).T
            found["copying"] = (needle[logits.argmax(-1)] == generated[copied][:, None]).double().mean(0)
        return found

    return reduce


def measure_query_retrieval(model: PreTrainedModel, runs: Sequence[DocumentRun]) -> HeadNumbers:
    """Measures how well the attention of a question ranks documents (Zhang et al. 2025).

    A document's score is the weight that its tokens get from those of the question, on average over the latter, less
    the same with an empty question; tokens that are more than two standard deviations below the mean of their document
    are left out. Documents are ranked by it.

    Args:
        model: a decoder.
        runs: the prompts, see `headlens.roles.needle_prompts.make_document_runs`.

    Returns:
        By site, means over the runs of every group, (groups, heads): `ndcg`, nDCG@10 of the document that answers the
        question; `ndcg_without`, the same if documents are ranked by what the empty question gives; `ndcg_even`, that
        of a random order; `ndcg_most`, whether the document is first.
    """
    counted: dict[int, list[HeadNumbers]] = {}
    for run in runs:
        asked = _document_weights(model, run.ids, run.query, run.documents)
        empty = _document_weights(model, run.empty_ids, run.empty_query, run.documents)
        found = {}
        gains = [_gain(rank) for rank in range(len(run.documents))]
        for site, weights in asked.items():
            scores = np.stack([_score(weights[n] - empty[site][n]) for n in weights], axis=-1)
            plain = np.stack([_score(empty[site][n]) for n in weights], axis=-1)  # (heads, documents)
            ranks = (scores > scores[:, run.gold, None]).sum(-1)
            found[site] = {
                "ndcg": _ndcg(scores, run.gold),
                "ndcg_most": (ranks == 0).astype(float),
                "ndcg_without": _ndcg(plain, run.gold),
                "ndcg_even": np.full(len(scores), np.mean(gains)),
            }
        counted.setdefault(run.group, []).append(found)
    return _by_group(counted)


def _document_weights(
    model: PreTrainedModel, ids: Sequence[int], query: range, documents: Sequence[range]
) -> dict[Site, dict[int, npt.NDArray[np.float64]]]:
    """The mean weight from the tokens of a question to each token of each document: (heads, tokens)."""

    def reduce(weights: Tensor, call: AttentionCall) -> dict[str, Tensor]:
        del call
        mean = weights[:, query.start : query.stop].mean(1)
        return {str(number): mean[:, span.start : span.stop] for number, span in enumerate(documents)}

    read = _read(model, ids, reduce)
    return {site: {int(name): array for name, array in found.items()} for site, found in read.items()}


def _score(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum of the weights of a document's tokens, (heads, tokens), without those far below their mean: (heads,)."""
    lowest = weights.mean(-1, keepdims=True) - _DEVIATIONS * weights.std(-1, keepdims=True)
    total: npt.NDArray[np.float64] = np.where(weights >= lowest, weights, 0.0).sum(-1)
    return total


def _ndcg(scores: npt.NDArray[np.float64], gold: int) -> npt.NDArray[np.float64]:
    """nDCG@10 of one relevant document, (heads,); documents of the same score share their ranks."""
    above = (scores > scores[:, gold, None]).sum(-1)
    equal = (scores == scores[:, gold, None]).sum(-1)
    return np.array([np.mean([_gain(a + n) for n in range(e)]) for a, e in zip(above, equal, strict=True)])


def _gain(rank: int) -> float:
    """The discounted gain of the only relevant document at a rank from 0."""
    return float(1 / np.log2(rank + 2)) if rank < _RANKS else 0.0


def _by_group(counted: dict[int, list[HeadNumbers]]) -> HeadNumbers:
    """Means of the runs of every group, (groups, heads) by site and name."""
    if not counted:
        return {}
    runs = next(iter(counted.values()))
    return {
        site: {
            name: np.stack([np.mean([run[site][name] for run in group], axis=0) for group in counted.values()])
            for name in numbers
        }
        for site, numbers in runs[0].items()
    }
