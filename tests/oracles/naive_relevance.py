"""Relevance of the heads of a small BERT classifier, from its weights, in numpy, with every contribution written out.

Written from the formulas alone: a forward pass, then each rule layer by layer with matrices z_uv and double precision.
Gradients come from the complex step: f(x + ih) = f(x) + ih f'(x), exact to rounding. One sentence, no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf

Array = npt.NDArray[Any]
EPS = 1e-5
STEP = 1e-30


@dataclass
class Dense:
    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        return x @ self.weight.T + self.bias


@dataclass
class Norm:
    weight: Array
    bias: Array
    eps: float

    def __call__(self, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.eps) * self.weight + self.bias


@dataclass
class Layer:
    query: Dense
    key: Dense
    value: Dense
    out: Dense
    norm1: Norm
    up: Dense
    down: Dense
    norm2: Norm
    seen: dict[str, Array] = field(default_factory=dict)


def attend(q: Array, k: Array, v: Array) -> Array:
    """One head: (tokens, d) each."""
    scores = np.exp(q @ k.T / np.sqrt(q.shape[1]))
    return scores / scores.sum(axis=1, keepdims=True) @ v


class NaiveBert:
    """A BERT classifier read from a state dict."""

    def __init__(self, state: Mapping[str, Array], n_layers: int, n_heads: int, eps: float) -> None:
        self.state, self.n_heads, self.eps = state, n_heads, eps
        layer = "bert.encoder.layer.{}."
        self.layers = [
            Layer(
                *(self.dense(f"{layer.format(i)}attention.self.{n}") for n in ("query", "key", "value")),
                self.dense(f"{layer.format(i)}attention.output.dense"),
                self.norm(f"{layer.format(i)}attention.output.LayerNorm"),
                self.dense(f"{layer.format(i)}intermediate.dense"),
                self.dense(f"{layer.format(i)}output.dense"),
                self.norm(f"{layer.format(i)}output.LayerNorm"),
            )
            for i in range(n_layers)
        ]
        self.first = self.norm("bert.embeddings.LayerNorm")
        self.pooler, self.classifier = self.dense("bert.pooler.dense"), self.dense("classifier")

    def dense(self, name: str) -> Dense:
        return Dense(self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def norm(self, name: str) -> Norm:
        return Norm(self.state[f"{name}.weight"], self.state[f"{name}.bias"], self.eps)

    def heads(self, x: Array) -> list[Array]:
        return np.split(x, self.n_heads, axis=1)

    def forward(self, ids: list[int], gates: Array | None = None) -> Array:
        """Logits; gates (layers, heads, queries) multiply head outputs."""
        table = "bert.embeddings.{}_embeddings.weight".format
        self.summed = self.state[table("word")][ids] + self.state[table("position")][: len(ids)]
        self.summed = self.summed + self.state[table("token_type")][0]
        x = self.first(self.summed)
        for i, layer in enumerate(self.layers):
            q, k, v = layer.query(x), layer.key(x), layer.value(x)
            outputs = [attend(*parts) for parts in zip(self.heads(q), self.heads(k), self.heads(v), strict=True)]
            if gates is not None:
                outputs = [o * gates[i, h, :, None] for h, o in enumerate(outputs)]
            context = np.concatenate(outputs, axis=1)
            projected = layer.out(context)
            middle = layer.norm1(projected + x)
            up = layer.up(middle)
            active = up * 0.5 * (1 + erf(up / np.sqrt(2)))
            down = layer.down(active)
            layer.seen = {"x": x, "q": q, "k": k, "v": v, "context": context, "projected": projected}
            layer.seen |= {"middle": middle, "active": active, "down": down}
            x = layer.norm2(down + middle)
        self.last = x
        self.pooled = np.tanh(self.pooler(x[:1]))
        return self.classifier(self.pooled)[0]


def starting(logits: Array, *, every: bool) -> Array:
    """Which logits relevance starts from."""
    return np.ones(len(logits), dtype=bool) if every else np.arange(len(logits)) == np.argmax(logits)


def by_gradient(model: NaiveBert, ids: list[int], rule: str, *, every: bool) -> Array:
    """(layers, heads): sum over queries of gradient times activation, or of its magnitude."""
    n_layers = len(model.layers)
    chosen = starting(model.forward(ids), every=every)
    found = np.zeros((n_layers, model.n_heads, len(ids)))
    for place in np.ndindex(found.shape):
        gates = np.ones(found.shape, dtype=complex)
        gates[place] += 1j * STEP
        found[place] = model.forward(ids, gates)[chosen].sum().imag / STEP
    return (np.abs(found) if rule == "taylor" else found).sum(axis=2)


class Epsilon:
    """R_u = sum_v z_uv / v · R_v, with every z_uv in a matrix."""

    halves = False

    def dense(self, layer: Dense, x: Array, r: Array) -> Array:
        return self.explicit(layer.weight[None] * x[:, None, :], layer(x), r)

    def norm(self, layer: Norm, x: Array, r: Array) -> Array:
        n = x.shape[1]
        deviation = np.sqrt(x.var(axis=1) + layer.eps)
        matrix = layer.weight[:, None] * (np.eye(n) - 1 / n) / deviation[:, None, None]
        return self.explicit(matrix * x[:, None, :], layer(x), r)

    def add(self, x: Array, y: Array, r: Array) -> tuple[Array, Array]:
        return x / (x + y) * r, y / (x + y) * r

    def merge(self, *parts: Array) -> Array:
        return sum(parts[1:], parts[0])

    @staticmethod
    def explicit(z: Array, v: Array, r: Array) -> Array:
        """z (tokens, outputs, inputs), v and r (tokens, outputs)."""
        return ((z / v[:, :, None]) * r[:, :, None]).sum(axis=1)

    def attention(self, q: Array, k: Array, v: Array, r: Array) -> tuple[Array, Array, Array]:
        """One head."""
        scores = q @ k.T / np.sqrt(q.shape[1])
        weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        z = weights[:, :, None] * v[None]  # (query, key, d)
        pieces = z / z.sum(axis=1, keepdims=True) * r[:, None, :]
        if not self.halves:
            return np.zeros_like(q), np.zeros_like(k), pieces.sum(axis=0)
        of_weights = pieces.sum(axis=2) / 2
        of_scores = scores * (of_weights - weights * of_weights.sum(axis=1, keepdims=True))
        terms = q[:, None, :] * k[None] / np.sqrt(q.shape[1])
        pairs = terms / scores[:, :, None] * of_scores[:, :, None] / 2
        return pairs.sum(axis=1), pairs.sum(axis=0), pieces.sum(axis=0) / 2


class AttnLrp(Epsilon):
    halves = True


class AlphaBeta:
    """Positive and negative parts on their own, bias spread over the inputs, magnitudes kept."""

    def relprop(self, jacobian: Array, x: Array, constant: Array, r: Array) -> Array:
        """One sample: jacobian (outputs, inputs)."""
        z = jacobian * x[None] + constant[:, None] / len(x)
        positive, negative = np.maximum(z, 0), np.minimum(z, 0)
        share = 0.5 * positive / (positive.sum(axis=1, keepdims=True) + EPS)
        share += 0.5 * negative / (negative.sum(axis=1, keepdims=True) - EPS)
        return self.scaled(r @ share, np.abs(r).sum())

    @staticmethod
    def scaled(r: Array, mass: float) -> Array:
        return r * mass / (np.abs(r).sum() + EPS)

    def by_token(self, function: Callable[[Array], Array], x: Array, r: Array) -> Array:
        rows = [
            self.relprop(jacobian(function, t), t, function(np.zeros_like(t)), own) for t, own in zip(x, r, strict=True)
        ]
        return self.scaled(np.stack(rows), np.abs(r).sum())

    def dense(self, layer: Dense, x: Array, r: Array) -> Array:
        return self.by_token(layer, x, r)

    def norm(self, layer: Norm, x: Array, r: Array) -> Array:
        return self.by_token(layer, x, r)

    def add(self, x: Array, y: Array, r: Array) -> tuple[Array, Array]:
        n = x.shape[1]
        both = np.concatenate([np.eye(n), np.eye(n)], axis=1)
        rows = [self.relprop(both, np.concatenate([a, b]), np.zeros(n), own) for a, b, own in zip(x, y, r, strict=True)]
        return np.stack(rows)[:, :n], np.stack(rows)[:, n:]

    def merge(self, *parts: Array) -> Array:
        total = sum(parts[1:], parts[0])
        return total * sum(np.abs(p).sum() for p in parts) / np.abs(total).sum()

    def attention(self, q: Array, k: Array, v: Array, r: Array) -> tuple[Array, Array, Array]:
        """One head."""
        n, d = q.shape

        def function(flat: Array) -> Array:
            return attend(*flat.reshape(3, n, d)).ravel()

        flat = np.concatenate([q.ravel(), k.ravel(), v.ravel()])
        found = self.relprop(jacobian(function, flat), flat, np.zeros(n * d), r.ravel()).reshape(3, n, d)
        return found[0], found[1], found[2]


def jacobian(function: Callable[[Array], Array], x: Array) -> Array:
    """(outputs, inputs), by the complex step."""
    columns = []
    for i in range(len(x)):
        moved = x.astype(complex)
        moved[i] += 1j * STEP
        columns.append(function(moved).imag / STEP)
    return np.stack(columns, axis=1)


def directly(model: NaiveBert, ids: list[int], *, every: bool) -> tuple[Array, Array]:
    """What each head, (layers, heads), and the embeddings, (tokens, hidden), write to the logits, carried forward.

    Norms are those of the pass with their deviations held; the pooler's tanh is its tangent.
    """
    chosen = starting(model.forward(ids), every=every)

    def normed(layer: Norm, part: Array, x: Array) -> Array:
        centred = part - part.mean(axis=-1, keepdims=True)
        return centred / np.sqrt(x.var(axis=-1, keepdims=True) + layer.eps) * layer.weight

    def carried(part: Array, first: int, *, inside: bool) -> Array:
        for i, layer in enumerate(model.layers[first:]):
            if i or not inside:
                part = normed(layer.norm1, part, layer.seen["projected"] + layer.seen["x"])
            part = normed(layer.norm2, part, layer.seen["down"] + layer.seen["middle"])
        slope = (1 - model.pooled[0] ** 2) * (model.classifier.weight[chosen].sum(axis=0))
        written = np.zeros_like(part)
        written[0] = part[0] * (slope @ model.pooler.weight)
        return written

    found = np.zeros((len(model.layers), model.n_heads))
    for i, layer in enumerate(model.layers):
        slices = zip(model.heads(layer.seen["context"]), model.heads(layer.out.weight), strict=True)
        for head, (output, weight) in enumerate(slices):
            total = layer.seen["projected"] + layer.seen["x"]
            found[i, head] = carried(normed(layer.norm1, output @ weight.T, total), i, inside=True).sum()
    return found, carried(normed(model.first, model.summed, model.summed), 0, inside=False)


RULES = {"epsilon": Epsilon, "attnlrp": AttnLrp, "alpha-beta": AlphaBeta}


def relevance(model: NaiveBert, ids: list[int], rule: str, *, every: bool = False) -> tuple[Array, Array]:
    """(layers, heads), and what arrives at the sum of the embeddings (tokens, hidden).

    Relevance starts from the largest logit, or from every one.
    """
    if rule in ("gradxact", "taylor"):
        return by_gradient(model, ids, rule, every=every), np.zeros(0)
    if rule == "logit-attribution":
        return directly(model, ids, every=every)
    rules: Any = RULES[rule]()
    logits = model.forward(ids)
    start = np.where(starting(logits, every=every), logits, 0.0)[None]
    r = np.zeros_like(model.last)
    r[:1] = rules.dense(model.pooler, model.last[:1], rules.dense(model.classifier, model.pooled, start))
    found = np.zeros((len(model.layers), model.n_heads))
    for i in reversed(range(len(model.layers))):
        layer = model.layers[i]
        s = layer.seen
        down, stays = rules.add(s["down"], s["middle"], rules.norm(layer.norm2, s["down"] + s["middle"], r))
        up = rules.dense(layer.up, s["middle"], rules.dense(layer.down, s["active"], down))
        r = rules.norm(layer.norm1, s["projected"] + s["x"], rules.merge(up, stays))
        projected, stays = rules.add(s["projected"], s["x"], r)
        context = rules.dense(layer.out, s["context"], projected)
        found[i] = [part.sum() for part in model.heads(context)]
        inputs = [model.heads(s[name]) for name in ("q", "k", "v")]
        parts = [rules.attention(*own) for own in zip(*inputs, model.heads(context), strict=True)]
        q, k, v = (np.concatenate(p, axis=1) for p in zip(*parts, strict=True))
        if rule == "alpha-beta":
            mass = np.abs(q).sum() + np.abs(k).sum() + np.abs(v).sum()
            q, k, v = (p * np.abs(context).sum() / (mass + EPS) for p in (q, k, v))
        back = [rules.dense(d, s["x"], p) for d, p in ((layer.query, q), (layer.key, k), (layer.value, v))]
        r = rules.merge(*(back if rule != "epsilon" else back[2:]), stays)
    return found, rules.norm(model.first, model.summed, r)
