"""The same three statistics in other ways: mean largest weight, entropy, offsets of the most attended key."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, BertForMaskedLM, PreTrainedModel
from transformers.masking_utils import eager_mask

from headlens.attention.edits_and_observers import Tokens
from headlens.corpora.batches import Batch

REACH = 8
Way = Callable[[Iterable[Batch]], "Sums"]


class Sums:
    """Sums over a corpus: peaks and entropies (layers, heads), offsets (layers, heads, 19)."""

    def __init__(self, layers: int, heads: int) -> None:
        self.peaks, self.entropies = np.zeros((layers, heads)), np.zeros((layers, heads))
        self.offsets = np.zeros((layers, heads, 2 * REACH + 3), dtype=np.int64)
        self.tokens = 0

    def add(self, layer: int, weights: Any, special: Any) -> None:
        """One sentence: weights (heads, query, key)."""
        self.peaks[layer] += weights.max(-1).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.entropies[layer] -= np.nansum(weights * np.log(weights), axis=(1, 2))
        content = np.where(special, -1.0, weights)
        target = content.argmax(-1)
        offset = np.clip(target - np.arange(weights.shape[1]), -REACH - 1, REACH + 1) + REACH + 1
        counted = ~special & (content.max(-1) > 0)
        for head in range(weights.shape[0]):
            self.offsets[layer, head] += np.bincount(offset[head][counted[head]], minlength=2 * REACH + 3)

    def add_batch(self, maps: Sequence[torch.Tensor], tokens: Tokens) -> None:
        """All layers of a batch, sentence by sentence."""
        lengths, special = tokens.real.sum(1).tolist(), tokens.special.cpu().numpy()
        self.tokens += sum(lengths)
        for layer, batch in enumerate(maps):
            weights = batch.cpu().numpy()
            for row, length in enumerate(lengths):
                self.add(layer, weights[row, :, :length, :length], special[row, :length])

    def agree(self, other: Sums) -> bool:
        """Whether two ways found the same; near-ties may go either way where the sums were rounded differently."""
        near = np.allclose(self.peaks, other.peaks, rtol=1e-4) and np.allclose(
            self.entropies, other.entropies, rtol=1e-4, atol=1e-2
        )
        return near and np.abs(self.offsets - other.offsets).sum() <= 1e-4 * self.offsets.sum()


def eager(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that computes its attention in the open."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin


def empty(model: PreTrainedModel) -> Sums:
    return Sums(model.config.num_hidden_layers, model.config.num_attention_heads)


def naive(model: PreTrainedModel, *, keep: bool = False) -> Way:
    """`output_attentions` and numpy; with `keep`, as notebooks do it: first all maps, then the statistics."""
    twin = eager(model)

    def way(batches: Iterable[Batch]) -> Sums:
        sums, kept = empty(twin), []
        for batch in batches:
            maps = twin(**batch.inputs, output_attentions=True).attentions
            if keep:
                kept.append((maps, batch.source))
            else:
                sums.add_batch(maps, batch.source)
        for maps, tokens in kept:
            sums.add_batch(maps, tokens)
        return sums

    return way


def expert(model: PreTrainedModel) -> Way:
    """A loop written by hand for this one purpose: whole batches, in the attention function, with torch."""
    twin = copy.deepcopy(model)
    state: dict[str, Any] = {}

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> Any:
        scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        tokens, layer, heads = state["tokens"], state["layer"], query.shape[1]
        real = tokens.real[:, None]
        peaks = (weights.amax(-1) * real).sum((0, 2))
        entropies = (torch.special.entr(weights).sum(-1) * real).sum((0, 2))
        value_, target = weights.masked_fill(tokens.special[:, None, None], -1).max(-1)
        offset = (target - torch.arange(target.shape[2], device=target.device)).clamp(-REACH - 1, REACH + 1) + REACH + 1
        offset += torch.arange(heads, device=target.device)[:, None] * (2 * REACH + 3)
        counted = ~tokens.special[:, None] & (value_ > 0)
        offsets = torch.bincount(offset[counted], minlength=heads * (2 * REACH + 3)).view(heads, -1)
        sums = state["sums"]
        sums.peaks[layer] += peaks.cpu().numpy()
        sums.entropies[layer] += entropies.cpu().numpy()
        sums.offsets[layer] += offsets.cpu().numpy()
        state["layer"] += 1
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("expert", attend)
    AttentionMaskInterface.register("expert", eager_mask)
    twin.set_attn_implementation("expert")

    def way(batches: Iterable[Batch]) -> Sums:
        state["sums"] = empty(twin)
        for batch in batches:
            state.update(tokens=batch.source, layer=0)
            twin(**batch.inputs)
            state["sums"].tokens += int(batch.source.real.sum())
        found: Sums = state["sums"]
        return found

    return way


def with_nnsight(model: PreTrainedModel) -> Way:
    """nnsight: every layer's map saved in a trace."""
    import nnsight

    twin = eager(model)
    wrapped = nnsight.NNsight(twin)

    def way(batches: Iterable[Batch]) -> Sums:
        sums = empty(twin)
        for batch in batches:
            with wrapped.trace(**batch.inputs):
                maps = nnsight.save([])
                for layer in wrapped.encoder.layer:
                    maps.append(layer.attention.self.output[1])
            sums.add_batch(maps, batch.source)
        return sums

    return way


def with_transformer_lens(model: PreTrainedModel, tokenizer: Any) -> Way:
    """TransformerLens: a hook on every pattern; the language-model head that it wants is there but does not run."""
    from transformer_lens.model_bridge import TransformerBridge

    inner = eager(model)
    whole = BertForMaskedLM._from_config(inner.config, attn_implementation="eager").eval()
    whole.bert = inner
    bridge = TransformerBridge.boot_transformers("google-bert/bert-base-uncased", hf_model=whole, tokenizer=tokenizer)
    names = [n for n in bridge.hook_dict if n.endswith("hook_pattern")]

    def way(batches: Iterable[Batch]) -> Sums:
        sums = empty(inner)
        for batch in batches:
            maps: list[torch.Tensor] = []
            hooks = [(name, lambda weights, hook, maps=maps: maps.append(weights)) for name in names]
            with bridge.hooks(fwd_hooks=hooks):
                inner(**batch.inputs)
            sums.add_batch(maps, batch.source)
        return sums

    return way


def others(model: PreTrainedModel, tokenizer: Any) -> dict[str, Way]:
    """All that can be imported here."""
    found = {"output_attentions + numpy": naive(model), "expert's loop": expert(model)}
    if find_spec("nnsight"):
        found["nnsight + numpy"] = with_nnsight(model)
    if find_spec("transformer_lens"):
        found["TransformerLens + numpy"] = with_transformer_lens(model, tokenizer)
    return found
