"""Roles of heads that show on prompts made for them: of random tokens, or with a question at their end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import special
from torch import Tensor, nn

from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, is_decoder_only
from headlens.errors import OptionError, counted
from headlens.models.language_outputs import unembedding_weight
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.options import PROBE_NAMES
from headlens.roles.needle_prompts import make_document_runs, make_needle_runs
from headlens.roles.probe_prompts import ProbePrompts, PromptSets, make_prompts
from headlens.roles.retrieval_probes import measure_query_retrieval, measure_retrieval
from headlens.statistics.intervals import mean_interval
from headlens.statistics.paired_tests import holm
from headlens.tables.classify_tables import PROBES
from headlens.weights.head_slicing import head_contributions

PROMPTS = 20
# Our own: a role asks for so much more weight than in both controls, as tiny differences are significant, too.
MARGIN = 0.1
SINK_RATE = 0.3  # from which on a text counts as one with a sink (Gu et al. 2025)
_FIRST_FOUR = 4  # tokens that Xiao et al. (2024) keep as sinks
_LEVEL, _ROUNDING = 0.05, 1e-6
_BATCH = 4096  # tokens
Numbers = dict[str, list[npt.NDArray[np.float64]]]  # by name, of every batch: (prompts, heads)


@dataclass
class _Weights(Observer):
    """Keeps numbers of every head of one pass.

    Args:
        reduce: makes numbers, (prompts, heads) each, of weights, (prompts, heads, query, key), and of the keys that
            queries see where a layer has a window, see `AttentionCall.allowed`.
        copying: makes such numbers of what heads give, (prompts, query, heads, d), at a site.
    """

    reduce: Callable[[Tensor, Tensor | None], Mapping[str, Tensor]]
    copying: Callable[[Site, Tensor], Mapping[str, Tensor]]
    found: dict[Site, Numbers] = field(default_factory=dict)
    needs_weights: bool = True

    def observe(self, call: AttentionCall) -> None:
        """Reduces the weights of a call; of rows with a learned sink those over tokens."""
        weights = call.distribution
        assert weights is not None
        kept = self.found.setdefault(call.site, {})
        for name, numbers in (
            *self.reduce(weights, call.allowed).items(),
            *self.copying(call.site, call.output).items(),
        ):
            kept.setdefault(name, []).append(numbers.double().cpu().numpy())


def measure_probes(
    loaded: LoadedModel, probes: Sequence[str], *, prompts: int = PROMPTS, seed: int = 0, batch_tokens: int = _BATCH
) -> tuple[pd.DataFrame, list[str]]:
    """Measures roles of all heads of a model on prompts of random tokens, and retrieval on English ones.

    Args:
        loaded: an encoder or a decoder with its tokenizer.
        probes: of `headlens.tables.classify_tables.PROBE_NAMES`.
        prompts: how many of random tokens are read, of each kind.
        seed: of the tokens, and of the order of documents.
        batch_tokens: most tokens of a pass; it changes no number but for rounding.

    Returns:
        Rows of probes.csv without the model, and notes.

    Raises:
        OptionError: for a model that cannot be asked, see `check_probes` and `make_prompts`.
    """
    check_probes(loaded, probes)
    causal = is_decoder_only(loaded.model)
    asks_copying = bool({"induction", "retrieval"} & set(probes))
    unembedding = unembedding_weight(loaded.model) if asks_copying else None
    unknown = asks_copying and unembedding is None
    notes = ["Probes: `copying` is empty, as the matrix from hidden states to logits is not known."] * unknown
    passes: dict[str, Any] = {}
    if set(probes) - set(_IN_TEXT):
        passes |= _random_passes(loaded, prompts, seed, batch_tokens, unembedding)
    passes |= _text_passes(loaded, probes, seed, unembedding, notes)
    if not causal:
        notes.append("Probes: tokens of this model also see those after them, which these roles do not count.")
    frames = []
    for name in dict.fromkeys(probes):
        if (kind := _COMPARISONS[name][0][0]) in passes:
            frames.append(rows := _rows(name, passes))
            heads = sum(site.n_heads for site in passes[kind])
            if (blind := heads - len(rows)) > 0:
                notes.append(
                    f"Probes: in {blind} of {counted(heads, 'head')} what {name} asks for is never within the window "
                    f"of the layer: {'it has no row' if blind == 1 else 'they have no rows'}."
                )
    empty = pd.DataFrame(columns=PROBES.names[1:])
    return pd.concat(frames, ignore_index=True)[PROBES.names[1:]] if frames else empty, notes


def _random_passes(
    loaded: LoadedModel, prompts: int, seed: int, batch_tokens: int, unembedding: Tensor | None
) -> dict[str, Any]:
    """Numbers of every head on the three kinds of prompts of random tokens."""
    causal = is_decoder_only(loaded.model)
    made = make_prompts(tokenizer_of(loaded), loaded.max_length, prompts, seed, causal=causal)
    return {
        "repeated": _read(loaded, made.repeated, made, batch_tokens, unembedding),
        "fresh": _read(loaded, made.fresh, made, batch_tokens, None),
        "gapped": _read(loaded, made.gapped, made, batch_tokens, None),
    }


def _text_passes(
    loaded: LoadedModel, probes: Sequence[str], seed: int, unembedding: Tensor | None, notes: list[str]
) -> dict[str, Any]:
    """Numbers of every head on prompts with a question; those of a model that answers nothing are not there."""
    if not (asked := [name for name in _IN_TEXT if name in probes]):
        return {}
    tokenizer, passes = tokenizer_of(loaded), dict[str, Any]()
    if "retrieval" in asked:
        runs = make_needle_runs(tokenizer, loaded.max_length)
        found, counted_runs = measure_retrieval(loaded.model, runs, unembedding)
        groups = len(next(iter(next(iter(found.values())).values()))) if found else 0
        facts = len({run.group for run in runs})
        notes.append(
            f"Retrieval: the model repeats more than half of the answer in {counted_runs} of "
            f"{counted(len(runs), 'prompt')} of about {len(runs[0].ids)} tokens, for {groups} of {facts} facts; only "
            "these count."
        )
        if groups > 1:
            passes["needles"] = found
        else:
            notes.append("Retrieval: too few facts to measure heads by: there are no rows.")
    if "query-retrieval" in asked:
        runs_of_documents = make_document_runs(tokenizer, loaded.max_length, seed)
        passes["documents"] = measure_query_retrieval(loaded.model, runs_of_documents)
    return passes


def check_probes(loaded: LoadedModel, probes: Collection[str]) -> None:
    """Refuses models that cannot read the prompts of some probes.

    Args:
        loaded: the model.
        probes: their names.

    Raises:
        OptionError: for an encoder-decoder, a model without tokenizer, one that reads too few tokens or knows too few;
            for prompts with a question also for a model that is no decoder.
    """
    if loaded.model.config.is_encoder_decoder:
        raise OptionError(
            f"--probes is for encoders and decoders; {loaded.name} is both.", "Leave --probes out for this model."
        )
    tokenizer = tokenizer_of(loaded)
    asked = [name for name in _IN_TEXT if name in probes]
    if asked and not is_decoder_only(loaded.model):
        raise OptionError(f"--probes {asked[0]} is for decoders; {loaded.name} is none.", "Leave it out.")
    if len(asked) < len(set(probes)):
        make_prompts(tokenizer, loaded.max_length, 1, 0, causal=is_decoder_only(loaded.model))
    if "retrieval" in asked:
        make_needle_runs(tokenizer, loaded.max_length, depths=(0,))
    if "query-retrieval" in asked:
        make_document_runs(tokenizer, loaded.max_length, 0)


def _read(
    loaded: LoadedModel, prompts: ProbePrompts, made: PromptSets, batch_tokens: int, unembedding: Tensor | None
) -> dict[Site, dict[str, npt.NDArray[np.float64]]]:
    """Numbers of every head on prompts: (prompts, heads) by site and name."""
    model, length, causal = loaded.model, prompts.ids.shape[1], is_decoder_only(loaded.model)
    size = max(1, batch_tokens // length)
    found: dict[Site, Numbers] = {}
    for begin in range(0, len(prompts.ids), size):
        part = slice(begin, begin + size)
        ids = torch.from_numpy(prompts.ids[part]).to(model.device)
        places = {
            name: torch.from_numpy(getattr(prompts, name)[part]).to(model.device)
            for name in ("following", "copies", "shifted", "shifted_copies")
        }
        reduce = partial(_masses, places=places, first=made.first, last=made.last, causal=causal)
        observer = _Weights(reduce, partial(_copying, model, ids=ids, made=made, unembedding=unembedding), found)
        arguments = {"use_cache": False} if causal else {}
        with AttentionSession(model, observers=[observer]), torch.inference_mode():
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **arguments)
    return {site: {n: np.concatenate(parts) for n, parts in numbers.items()} for site, numbers in found.items()}


def _masses(
    weights: Tensor, allowed: Tensor | None, places: Mapping[str, Tensor], first: int, last: int, *, causal: bool
) -> dict[str, Tensor]:
    """Means over queries of the weight on places, (prompts, heads) each; `…_most`: how often the largest is there.

    Of copies and previous tokens the first token and the token itself are left out, and the rest adds up to 1.
    """
    length = weights.shape[-1]
    own = torch.eye(length, dtype=torch.bool, device=weights.device)
    seen = torch.ones_like(own).tril() if causal else torch.ones_like(own)
    seen = seen if allowed is None else allowed & seen  # (..., query, key)
    but_own = seen & ~own
    but_own[..., :first] = False
    # Of even attention, over all the keys that a query sees and over those without the first one and itself.
    evenly, others_evenly = (
        keys / keys.sum(-1, keepdim=True).clamp_min(1) for keys in (seen.double(), but_own.double())
    )
    others = weights.masked_fill(own, 0)
    others[..., :first] = 0
    others = others / others.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    found: dict[str, Tensor] = {}
    for name, of, even in (
        *(("following", weights, evenly), ("shifted", weights, evenly)),
        *(("copies", others, others_evenly), ("shifted_copies", others, others_evenly)),
    ):
        chosen = places[name][:, None]  # (prompts, 1, query, key)
        asked = chosen.any(-1)
        number = asked.sum(-1).clamp_min(1)
        found[name] = ((of * chosen).sum(-1) * asked).sum(-1) / number
        most = chosen.expand(of.shape).gather(-1, of.argmax(-1, keepdim=True))[..., 0]
        found[f"{name}_most"] = (most & asked).sum(-1) / number
        found[f"{name}_even"] = (((even * chosen).sum(-1) * asked).sum(-1) / number).expand(found[name].shape)
        if of is others:
            found[f"{name}_weight"] = ((weights * chosen).sum(-1) * asked).sum(-1) / number
    for name, back in (("previous", 1), ("two_back", 2)):
        queries = torch.arange(first + 2, length - last, device=weights.device)
        keys = queries - back
        found[name] = others[..., queries, keys].mean(-1)
        found[f"{name}_weight"] = weights[..., queries, keys].mean(-1)
        found[f"{name}_most"] = (others[..., queries, :].argmax(-1) == keys).double().mean(-1)
        found[f"{name}_even"] = others_evenly[..., queries, keys].mean(-1).expand(found[name].shape)
    queries = torch.arange(1, length - last, device=weights.device)
    for name, key in (("sink", 0), ("second", 1)):
        of = queries if key == 0 else queries[1:]
        found[name] = weights[..., of, key].mean(-1)
        found[f"{name}_most"] = (weights[..., of, :].argmax(-1) == key).double().mean(-1)
        found[f"{name}_even"] = evenly[..., of, key].mean(-1).expand(found[name].shape)
    found["first_four"] = weights[..., _FIRST_FOUR:, :_FIRST_FOUR].sum(-1).mean(-1)
    return found


def _copying(
    model: nn.Module, site: Site, output: Tensor, ids: Tensor, made: PromptSets, unembedding: Tensor | None
) -> dict[str, Tensor]:
    """How often a head raises, of all tokens of the block, the logit of the one that follows the most.

    Nothing without an unembedding. The direct path alone: the head's output through its part of the output projection
    to the unembedding, without the final normalisation.
    """
    if unembedding is None:
        return {}
    block, first = made.block, made.first
    queries = torch.arange(first + block, first + 4 * block - 1, device=ids.device)
    added = head_contributions(model, site.module, output[:, queries])  # (prompts, queries, heads, features)
    if added is None or added.shape[-1] != unembedding.shape[1] or not block:
        return {}
    tokens = ids[:, first : first + block]  # (prompts, block)
    logits = torch.einsum("pqhf,pbf->pqhb", added, unembedding[tokens].to(output.dtype))
    expected = (queries - first + 1) % block
    return {"copying": (logits.argmax(-1) == expected[None, :, None]).double().mean(1)}


# Of every probe: the prompts and the number that count, and what they are compared with, twice.
_COMPARISONS = {
    "previous": (("fresh", "previous", "previous_even"), ("fresh", "previous", "two_back")),
    "duplicate": (("repeated", "copies", "fresh"), ("gapped", "copies", "shifted_copies")),
    "induction": (("repeated", "following", "fresh"), ("gapped", "following", "shifted")),
    "sink": (("fresh", "sink", "sink_even"), ("fresh", "sink", "second")),
    "retrieval": (("needles", "hits", "decoy_hits"), ("needles", "hits_most", "decoy_hits_most")),
    "query-retrieval": (("documents", "ndcg", "ndcg_even"), ("documents", "ndcg", "ndcg_without")),
}
_IN_TEXT = ("retrieval", "query-retrieval")  # probes whose prompts are English text


def _rows(name: str, passes: Mapping[str, Mapping[Site, Mapping[str, Any]]]) -> pd.DataFrame:
    """The rows of a probe, corrected for all heads of the model that can see what it asks for."""
    from scipy import stats  # takes a third of a second

    (kind, number, control), (second_kind, second_number, second_control) = _COMPARISONS[name]
    rows, by_prompt = list[dict[str, Any]](), list[npt.NDArray[np.float64]]()
    for site in passes[kind]:
        first, second = passes[kind][site], passes[second_kind][site]
        values = first[number]
        pairs = (
            (values, passes["fresh"][site][number] if control == "fresh" else first[control]),
            (second[second_number], second[second_control]),
        )
        for place, head in enumerate(site.heads):
            chance = float(first[f"{number}_even"][:, place].mean())
            if chance == 0:  # not within its window
                continue
            (score, less), (second_score, second_less) = ((a[:, place], b[:, place]) for a, b in pairs)
            differences = (score - less, second_score - second_less)
            mean, low, high = mean_interval(score)
            p_values = [_p_value(difference) for difference in differences]
            row: dict[str, Any] = {
                **head._asdict(),
                "probe": name,
                "n": len(score),
                "score": mean,
                "ci_low": low,
                "ci_high": high,
                "control": less.mean(),
                "second_score": second_score.mean(),
                "second_control": second_less.mean(),
                "above": min(float(d.mean()) for d in differences),
                "chance": chance,
                "most": float(first[f"{number}_most"][:, place].mean()),
                "weight": np.nan if name in _IN_TEXT else float(first.get(f"{number}_weight", values)[:, place].mean()),
                "p_value": max(p_values),  # above both
                **dict.fromkeys(("copying", "rate", "first_four"), np.nan),
            }
            if name in ("induction", "retrieval") and "copying" in first:
                row["copying"] = float(first["copying"][:, place].mean())
            if name == "sink":
                row["rate"] = float((score > SINK_RATE).mean())
                row["first_four"] = float(first["first_four"][:, place].mean())
            rows.append(row)
            by_prompt.append(score)
    if not rows:
        return pd.DataFrame(columns=PROBES.names[1:])
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table["p_value"].to_numpy(float))
    table["holds"] = (table["p_holm"] < _LEVEL) & (table["above"] >= MARGIN)
    scores = np.stack(by_prompt)  # (heads, prompts)
    halves = scores[:, ::2].mean(1), scores[:, 1::2].mean(1)
    varied = len(scores) > 2 and all(np.ptp(half) > 0 for half in halves)
    table["stability"] = float(stats.spearmanr(*halves).statistic) if varied else np.nan
    return table


def _p_value(differences: npt.NDArray[np.float64]) -> float:
    """One-sided p-value of a mean difference above 0 (Student's t over prompts); without variation 0 or 1."""
    mean, deviation = differences.mean(), differences.std(ddof=1)
    if deviation < _ROUNDING:
        return 0.0 if mean > _ROUNDING else 1.0
    return float(special.stdtr(len(differences) - 1, -mean * np.sqrt(len(differences)) / deviation))


def held_heads(probes: pd.DataFrame) -> dict[str, list[list[int]]]:
    """Returns the heads that hold each role, as `[layer, head]`, as tools for KV caches and retrieval read them.

    Args:
        probes: rows of probes.csv of one model.
    """
    names = [name for name in PROBE_NAMES if name in set(probes["probe"])]
    held = probes[probes["holds"].astype(str) == "True"]
    return {n: held.loc[held["probe"] == n, ["layer", "head"]].astype(int).to_numpy().tolist() for n in names}
