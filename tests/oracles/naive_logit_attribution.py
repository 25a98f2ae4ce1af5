"""Logits of tiny models as sums, from what their modules read and give, carried forward one part at a time.

A residual stream is kept as its parts: embeddings, biases, MLPs, and every head's slice of the output projection. A
norm is applied to each part with the scale that the whole has. Everything is in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

Seen = Mapping[str, tuple[Tensor, Tensor]]


class Stream:
    """A sum of named parts, each (batch, tokens, d)."""

    def __init__(self, **parts: Tensor) -> None:
        self.parts: dict[Hashable, Tensor] = dict(parts)

    def add(self, name: Hashable, part: Tensor) -> None:
        self.parts[name] = self.parts.get(name, torch.zeros(())) + part

    def total(self) -> Tensor:
        return sum(self.parts.values(), torch.zeros(()))

    def map(self, change: Callable[[Tensor], Tensor]) -> None:
        self.parts = {name: change(part) for name, part in self.parts.items()}

    def layer_norm(self, norm: nn.LayerNorm) -> None:
        scale = norm.weight / (self.total().var(dim=-1, keepdim=True, correction=0) + norm.eps).sqrt()
        self.map(lambda part: (part - part.mean(dim=-1, keepdim=True)) * scale)
        self.add("biases", norm.bias)

    def linear(self, weight: Tensor, bias: Tensor | None) -> None:
        """W (outputs, inputs)."""
        self.map(lambda part: part @ weight.T)
        if bias is not None:
            self.add("biases", bias)

    def tangent(self, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> None:
        point = self.total()
        self.map(lambda part: part * slope(point))
        self.add("curvature", function(point) - slope(point) * point)

    def heads(self, where: str, context: Tensor, weight: Tensor, bias: Tensor | None, n_heads: int) -> None:
        """Head outputs side by side (batch, tokens, heads x d), and the projection (outputs, heads x d)."""
        size = context.shape[-1] // n_heads
        for head in range(n_heads):
            own = slice(head * size, (head + 1) * size)
            self.add((where, head), context[..., own] @ weight[:, own].T)
        if bias is not None:
            self.add("biases", bias)

    def mlp(self, output: Tensor, bias: Tensor | None) -> None:
        """What an MLP gives, of which the last bias is told apart."""
        self.add("mlps", output if bias is None else output - bias)
        if bias is not None:
            self.add("biases", bias)


def seen_by(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[Any, Seen]:
    """The outputs, and what every module read first and gave, by name."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    with ExitStack() as undo, torch.no_grad():
        for name, module in model.named_modules():
            watch = lambda _, read, gave, name=name: seen.update({name: (read[0] if read else None, gave)})  # noqa: E731
            undo.callback(module.register_forward_hook(watch).remove)
        outputs = model(**inputs)
    return outputs, seen


def bert_stream(model: Any, seen: Seen, prefix: str = "bert.") -> Stream:
    """The last hidden states of a BERT."""
    tables = [seen[f"{prefix}embeddings.{name}_embeddings"][1] for name in ("word", "position", "token_type")]
    stream = Stream(embeddings=sum(tables, torch.zeros(())))
    bert = model.get_submodule(prefix.rstrip("."))
    stream.layer_norm(bert.embeddings.LayerNorm)
    for number, layer in enumerate(bert.encoder.layer):
        name = f"{prefix}encoder.layer.{number}"
        dense = layer.attention.output.dense
        context = seen[f"{name}.attention.output.dense"][0]
        stream.heads(f"encoder.{number}", context, dense.weight, dense.bias, model.config.num_attention_heads)
        stream.layer_norm(layer.attention.output.LayerNorm)
        stream.mlp(seen[f"{name}.output.dense"][1], layer.output.dense.bias)
        stream.layer_norm(layer.output.LayerNorm)
    return stream


def bert_masked_logits(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Stream]:
    """Logits at every token, and the stream that adds up to them."""
    outputs, seen = seen_by(model, inputs)
    stream, head = bert_stream(model, seen), model.cls.predictions
    stream.linear(head.transform.dense.weight, head.transform.dense.bias)
    phi = lambda x: (1 + torch.erf(x / math.sqrt(2))) / 2  # noqa: E731
    density = lambda x: torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    stream.tangent(functional.gelu, lambda x: phi(x) + x * density(x))
    stream.layer_norm(head.transform.LayerNorm)
    stream.linear(head.decoder.weight, head.decoder.bias)
    return outputs.logits, stream


def bert_class_logits(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Stream]:
    """Logits of classes, and the stream that adds up to them, with one token."""
    outputs, seen = seen_by(model, inputs)
    stream = bert_stream(model, seen)
    stream.map(lambda part: part[..., :1, :] if part.dim() == 3 else part)
    stream.linear(model.bert.pooler.dense.weight, model.bert.pooler.dense.bias)
    stream.tangent(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2)
    stream.linear(model.classifier.weight, model.classifier.bias)
    return outputs.logits[:, None], stream


def gpt2_logits(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Stream]:
    """Logits at every token, and the stream that adds up to them."""
    outputs, seen = seen_by(model, inputs)
    stream = Stream(embeddings=seen["transformer.wte"][1] + seen["transformer.wpe"][1])
    for number, block in enumerate(model.transformer.h):
        name = f"transformer.h.{number}"
        weight, bias = block.attn.c_proj.weight.T, block.attn.c_proj.bias
        stream.heads(f"decoder.{number}", seen[f"{name}.attn.c_proj"][0], weight, bias, model.config.n_head)
        stream.mlp(seen[f"{name}.mlp.c_proj"][1], block.mlp.c_proj.bias)
    stream.layer_norm(model.transformer.ln_f)
    stream.linear(model.lm_head.weight, None)
    return outputs.logits, stream


def llama_logits(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Stream]:
    """Logits at every token, and the stream that adds up to them."""
    outputs, seen = seen_by(model, inputs)
    stream = Stream(embeddings=seen["model.embed_tokens"][1])
    for number, layer in enumerate(model.model.layers):
        name, weight = f"model.layers.{number}", layer.self_attn.o_proj.weight
        n_heads = model.config.num_attention_heads
        stream.heads(f"decoder.{number}", seen[f"{name}.self_attn.o_proj"][0], weight, None, n_heads)
        stream.mlp(seen[f"{name}.mlp"][1], None)
    # The model computes its scale in single precision: it is read off.
    ratio = seen["model.norm"][1] / seen["model.norm"][0]
    stream.map(lambda part: part * ratio)
    stream.linear(model.lm_head.weight, None)
    return outputs.logits, stream


def marian_logits(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Stream]:
    """Logits at every token of the target, and the stream of the decoder that adds up to them."""
    outputs, seen = seen_by(model, inputs)
    decoder = model.model.decoder
    positions = seen["model.decoder.embed_positions"][1]
    stream = Stream(embeddings=seen["model.decoder.embed_tokens"][1] * decoder.embed_scale + positions)
    for number, layer in enumerate(decoder.layers):
        name = f"model.decoder.layers.{number}"
        for stack, part in (("decoder", "self_attn"), ("cross", "encoder_attn")):
            projection = getattr(layer, part).out_proj
            context = seen[f"{name}.{part}.out_proj"][0]
            n_heads = model.config.decoder_attention_heads
            stream.heads(f"{stack}.{number}", context, projection.weight, projection.bias, n_heads)
            stream.layer_norm(getattr(layer, f"{part}_layer_norm"))
        stream.mlp(seen[f"{name}.fc2"][1], layer.fc2.bias)
        stream.layer_norm(layer.final_layer_norm)
    stream.linear(model.lm_head.weight, None)
    stream.add("biases", model.final_logits_bias)
    return outputs.logits, stream
