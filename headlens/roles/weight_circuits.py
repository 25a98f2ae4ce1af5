"""What the weights of heads do, without any text: copying, matching, composition, and their leading directions.

Of a head with the matrices W_Q, W_K, W_V (d, k) and W_O (k, d), for rows multiplied from the left, W_V W_O says what is
written for what is attended to, and W_Q W_K' what attends to what (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"). Both have a rank of k, so that nothing here is larger than d x d: the eigenvalues of
W_E W_V W_O W_U that are not 0 are those of W_O (W_U W_E) W_V, (k, k), and norms and singular values of products are
those of the triangular factors of their parts.

Left out are biases, MLPs, positions, and the scales of norms; gains are part of the matrices where norms stand beside
the residual stream (`headlens.weights.folded_norms`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.attention.sites import Site, find_sites
from headlens.corpora.sentence import Example
from headlens.errors import counted
from headlens.heads import Head, Stack
from headlens.models.language_outputs import unembedding_weight
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.tables.circuit_tables import (
    CIRCUITS,
    COMPOSITION,
    HEAD_CIRCUITS,
    LAYER_COMPOSITION,
    SINGULAR_DIRECTIONS,
)
from headlens.weights.folded_norms import NormPlaces, find_norms
from headlens.weights.head_matrices import HeadMatrices, head_matrices

FREQUENT, TEXTS = 1000, 5000  # tokens that are copied or not, and texts of the corpus in which they are counted
DIRECTIONS, NEAREST, EARLIER = 3, 6, 5  # of a matrix, tokens of each, earlier heads of each head
DRAWS, _SURE, _FEWEST = 200, 0.95, 2
# What no text contains.
_UNUSED = re.compile(r"[\[<]\|?(unused|extra_id|reserved|0x|pad|dummy)", re.IGNORECASE)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens as vectors of the residual stream of a stack.

    Args:
        source: what keys and values are made from at first, (vocabulary, d), None where it is not known.
        queries: the same of queries.
        target: what logits are made with; of encoders their embeddings.
        readable: ids of tokens that texts have.
    """

    source: Tensor | None
    queries: Tensor | None
    target: Tensor | None
    readable: Sequence[int]

    @cached_property
    def copied(self) -> Tensor | None:
        """The product W_U W_E over all tokens, (d, d of keys)."""
        return _gram(self.target, self.source)

    @cached_property
    def matched(self) -> Tensor | None:
        """The product W_E' W_E of what keys and queries are made from, (d of keys, d)."""
        return _gram(self.source, self.queries)

    @cached_property
    def units(self) -> dict[str, Tensor]:
        """Of those that are known, the readable tokens as vectors of length 1."""
        known = {name: getattr(self, name) for name in ("source", "queries", "target")}
        return {
            name: torch.nn.functional.normalize(tokens[self.ids(tokens)], dim=1)
            for name, tokens in known.items()
            if tokens is not None
        }

    def ids(self, tokens: Tensor) -> list[int]:
        """Returns the ids of readable tokens that there are vectors of."""
        size = len(tokens)
        return [i for i in self.readable if i < size]


def _gram(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """The sum over tokens of the products of their vectors; None where those of either are not known."""
    return None if left is None or right is None or len(left) != len(right) else left.T @ right


def check_circuits(loaded: LoadedModel) -> None:
    """Refuses a model whose heads have no matrices that headlens finds.

    Raises:
        ModelError: if it has no tokenizer.
        UnsupportedModelError: see `head_matrices`.
    """
    tokenizer_of(loaded)
    for site in _sites(loaded.model):
        head_matrices(loaded.model, site.module, site.n_heads)


def measure_circuits(
    loaded: LoadedModel, corpus: Iterable[Example], *, draws: int = DRAWS, seed: int = 0
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Measures what the weights of all heads of a model do.

    Args:
        loaded: the model with its tokenizer.
        corpus: where tokens are counted, of which the most frequent are the ones that are copied or not; the model does
            not read it.
        draws: random heads that scores are compared with.
        seed: of these.

    Returns:
        The tables of `headlens.tables.circuit_tables` without the model, by name, and notes.

    Raises:
        UnsupportedModelError: see `check_circuits`.
    """
    model, tokenizer, sites = loaded.model, tokenizer_of(loaded), _sites(loaded.model)
    readable = readable_ids(tokenizer)
    frequent = _frequent(tokenizer, corpus, set(readable))
    with torch.no_grad():
        norms = find_norms(model, {site.module: site.layer_list for site in sites}, readable[:4])
        modules: dict[str, HeadMatrices] = {}
        for site in sites:
            if site.module not in modules:
                found = head_matrices(model, site.module, site.n_heads)
                modules[site.module] = norms.folded(site.module, model.get_submodule(site.module), found)
        first = {site.stack: modules[site.module] for site in sites}
        vocabularies = {stack: _vocabulary(model, stack, norms, own, readable) for stack, own in first.items()}
        bounds = {stack: _bounds(own, vocabularies[stack], draws, seed) for stack, own in first.items()}
        heads, directions = list[dict[str, Any]](), list[dict[str, Any]]()
        for name, matrices in modules.items():
            own = [site for site in sites if site.module == name]
            vocabulary = vocabularies[own[0].stack]
            columns = _measures(matrices, vocabulary, frequent, bounds[own[0].stack])
            found_directions = list(_directions(matrices, vocabulary, tokenizer))
            for site in own:
                for place, head in enumerate(site.heads):
                    heads.append(head._asdict() | {name: column[place] for name, column in columns.items()})
                directions += [site.heads[place]._asdict() | row for place, row in found_directions]
        pairs, layers = _compositions(sites, modules)
    rows = {HEAD_CIRCUITS: heads, SINGULAR_DIRECTIONS: directions, COMPOSITION: pairs, LAYER_COMPOSITION: layers}
    frames = {schema.name: schema.frame(rows[schema])[schema.names[1:]] for schema in CIRCUITS}
    return frames, _notes(model, sites, norms, vocabularies, len(frequent))


def _sites(model: PreTrainedModel) -> list[Site]:
    return [site for site in find_sites(model) if site.n_heads]


def readable_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the ids of a vocabulary without special tokens, and those that stand for none, such as `[unused1]`."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return sorted(i for token, i in tokenizer.get_vocab().items() if i not in special and not _UNUSED.match(token))


def _frequent(tokenizer: PreTrainedTokenizerBase, corpus: Iterable[Example], readable: set[int]) -> list[int]:
    """The most frequent tokens of a corpus, of both sides of translations."""
    counts: Counter[int] = Counter()
    for example in islice(corpus, TEXTS):
        counts.update(tokenizer(example.source.text, add_special_tokens=False)["input_ids"])
        if example.target is not None:
            counts.update(tokenizer(text_target=example.target.text, add_special_tokens=False)["input_ids"])
    return [token for token, _ in counts.most_common() if token in readable][:FREQUENT]


def _vocabulary(
    model: PreTrainedModel, stack: str, norms: NormPlaces, matrices: HeadMatrices, readable: Sequence[int]
) -> Vocabulary:
    """The tokens of a model as the heads of a stack meet them, as far as these vectors are as wide as their stream."""
    untyped: Any = model
    two_sided = bool(model.config.is_encoder_decoder)
    encoder, decoder = (untyped.get_encoder(), untyped.get_decoder()) if two_sided else (untyped, untyped)
    source = _embeddings(encoder if stack in ("encoder", "cross") else decoder, matrices.key.shape[1])
    if stack != "encoder" and getattr(model.config, "share_encoder_decoder_embeddings", True) is False:
        return Vocabulary(None, None, None, readable)  # two vocabularies, of which the tokenizer names one
    if stack == "encoder":
        return Vocabulary(source, source, source, readable)
    logits, width = unembedding_weight(model), matrices.output.shape[2]
    if logits is not None and logits.shape[1] != width:
        outward = _between(decoder, (logits.shape[1], width))
        logits = None if outward is None else logits @ outward
    target = None if logits is None else norms.unembedding(_exact(logits))
    return Vocabulary(source, _embeddings(decoder, matrices.query.shape[1]), target, readable)


def _embeddings(part: Any, width: int) -> Tensor | None:
    """Tokens as the stream has them at first, (vocabulary, width); None where that is not known."""
    weight = getattr(part.get_input_embeddings(), "weight", None)
    if not isinstance(weight, Tensor) or weight.is_meta:
        return None
    if weight.shape[1] == width:
        return _exact(weight)
    inward = _between(part, (width, weight.shape[1]))
    return None if inward is None else _exact(weight) @ _exact(inward).T


def _between(part: nn.Module, shape: tuple[int, int]) -> Tensor | None:
    """The weight of this shape of the one linear layer outside of all lists of layers that has it (ALBERT, OPT)."""
    linear = [(name, m) for name, m in part.named_modules() if isinstance(m, nn.Linear) and m.weight.shape == shape]
    weights = [m.weight for name, m in linear if not any(piece.isdigit() for piece in name.split("."))]
    return weights[0] if len(weights) == 1 else None


def _exact(weight: Tensor) -> Tensor:
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


def _measures(
    matrices: HeadMatrices, vocabulary: Vocabulary, frequent: Sequence[int], bounds: Mapping[str, float]
) -> dict[str, npt.NDArray[np.float64]]:
    """The columns of circuits.csv for the heads of a module; empty where its tokens are not those of its stream."""
    found = {name: np.full(len(matrices.query), bounds.get(name, np.nan)) for name in HEAD_CIRCUITS.names[4:]}
    source, target = vocabulary.source, vocabulary.target
    if vocabulary.copied is not None and source is not None and target is not None:
        found["copying"] = eigenvalue_shares(matrices.output @ vocabulary.copied @ matrices.value)
        found["copying_top"] = own_first(source[frequent] @ matrices.value, matrices.output @ target[frequent].T)
    if vocabulary.matched is not None:
        found["matching"] = eigenvalue_shares(matrices.key.transpose(1, 2) @ vocabulary.matched @ matrices.query)
    return found


def _bounds(matrices: HeadMatrices, vocabulary: Vocabulary, draws: int, seed: int) -> dict[str, float]:
    """Below which the magnitudes of scores of heads with Gaussian weights are in 95 % of draws, by column."""
    generator = torch.Generator().manual_seed(seed)

    def bound(outward: Tensor, gram: Tensor, inward: Tensor) -> float:
        shapes = ((draws, *part.shape[1:]) for part in (outward, inward))
        first, last = (torch.randn(shape, generator=generator, dtype=gram.dtype).to(gram.device) for shape in shapes)
        return float(np.quantile(np.abs(eigenvalue_shares(first @ gram @ last)), _SURE))

    parts = {
        "copying": (matrices.output, vocabulary.copied, matrices.value),
        "matching": (matrices.key.transpose(1, 2), vocabulary.matched, matrices.query),
    }
    return {
        f"{name}_random": bound(out, gram, inward) for name, (out, gram, inward) in parts.items() if gram is not None
    }


def eigenvalue_shares(small: Tensor) -> npt.NDArray[np.float64]:
    """Sums of eigenvalues over the sums of their magnitudes, of matrices (heads, k, k); NaN where all are 0."""
    values = np.linalg.eigvals(small.double().cpu().numpy())
    magnitudes = np.abs(values).sum(axis=-1)
    empty = np.full(len(values), np.nan)
    found: npt.NDArray[np.float64] = np.divide(values.real.sum(axis=-1), magnitudes, out=empty, where=magnitudes > 0)
    return found


def own_first(before: Tensor, after: Tensor) -> npt.NDArray[np.float64]:
    """Of tokens the share whose own number is the largest of their row of a product, by head.

    Args:
        before: (heads, tokens, k).
        after: (heads, k, tokens).
    """
    tokens = before.shape[1]
    if tokens < _FEWEST:
        return np.full(len(before), np.nan)
    own = torch.arange(tokens, device=before.device)
    pairs = zip(before, after, strict=True)
    return np.array([float(((left @ right).argmax(dim=1) == own).double().mean()) for left, right in pairs])


def _directions(
    matrices: HeadMatrices, vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of the table of directions, with the place of their head among those of the module."""
    circuits = {
        "OV": (matrices.value, matrices.output.transpose(1, 2), "source", "target"),
        "QK": (matrices.query, matrices.key, "queries", "source"),
    }
    for name, (left, right, *sides) in circuits.items():
        starts, values, ends = singular_directions(left, right)
        shares = values.square() / values.square().sum(dim=-1, keepdim=True)
        texts = [
            _nearest(turned, vocabulary, side, tokenizer) for turned, side in zip((starts, ends), sides, strict=True)
        ]
        for place, direction in product(range(len(left)), range(starts.shape[2])):
            row = {"circuit": name, "direction": direction, "share": float(shares[place, direction])}
            for number, sign in enumerate(("+", "-")):
                before, after = (text[number][place, direction] for text in texts)
                yield place, row | {"sign": sign, "from_tokens": before, "to_tokens": after}


def singular_directions(left: Tensor, right: Tensor, most: int = DIRECTIONS) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular directions of the products of left and transposed right.

    Args:
        left: (heads, d, k).
        right: (heads, other d, k).
        most: how many.

    Returns:
        Left directions (heads, d, most), all singular values (heads, k), right directions (heads, other d, most). The
        largest number of a left direction is above 0.
    """
    (first, upper), (second, other) = torch.linalg.qr(left), torch.linalg.qr(right)
    u, values, v = torch.linalg.svd(upper @ other.transpose(1, 2))
    starts, ends = first @ u[..., :most], second @ v.transpose(1, 2)[..., :most]
    signs = starts.gather(1, starts.abs().argmax(dim=1, keepdim=True)).sign()
    return starts * signs, values, ends * signs


def _nearest(
    directions: Tensor, vocabulary: Vocabulary, side: str, tokenizer: PreTrainedTokenizerBase
) -> list[dict[tuple[int, int], str]]:
    """The tokens nearest by cosine to directions (heads, d, directions), then to their opposites.

    Texts are by head and number of the direction.
    """
    heads, width, each = directions.shape
    places = list(product(range(heads), range(each)))
    unit = vocabulary.units.get(side)
    if unit is None or unit.shape[1] != width:
        return [dict.fromkeys(places, "")] * 2
    ids = vocabulary.ids(getattr(vocabulary, side))
    cosines = unit @ directions.transpose(0, 1).reshape(width, -1)  # (tokens, heads x directions)
    nearest = [(sign * cosines).topk(min(NEAREST, len(ids)), dim=0).indices.T.tolist() for sign in (1, -1)]
    return [
        {
            place: " ".join(map(str, tokenizer.convert_ids_to_tokens([ids[i] for i in row])))
            for place, row in zip(places, rows, strict=True)
        }
        for rows in nearest
    ]


def compositions(before: HeadMatrices, after: HeadMatrices) -> dict[str, Tensor]:
    """How much heads write into the queries, keys and values of other heads: (later heads, earlier heads) by kind.

    The Frobenius norm of the product of the matrices of two heads over the product of their norms (Elhage et al. 2021),
    for the kinds whose width is that of what is written.
    """
    values, norm = before.factors["value"], _norms(before, "value", "output")
    found = {}
    for kind, (reading, other) in {"Q": ("query", "key"), "K": ("key", "query"), "V": ("value", "output")}.items():
        read, own, rest = getattr(after, reading), _norms(after, reading, other), after.factors[other].transpose(1, 2)
        if read.shape[1] == before.output.shape[2]:
            products = [values @ (before.output @ one) @ factor for one, factor in zip(read, rest, strict=True)]
            ratios = torch.stack([torch.linalg.matrix_norm(p) for p in products]) / (own[:, None] * norm)
            found[kind] = ratios.nan_to_num()  # of a head whose matrices are 0 nothing is composed
    return found


def _norms(matrices: HeadMatrices, left: str, right: str) -> Tensor:
    """Frobenius norms of the products of two of the matrices of every head, (heads,)."""
    norms: Tensor = torch.linalg.matrix_norm(matrices.factors[left] @ matrices.factors[right].transpose(1, 2))
    return norms


def _compositions(
    sites: Sequence[Site], modules: Mapping[str, HeadMatrices]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of composition.csv and of layer_composition.csv."""
    known: dict[tuple[str, str], dict[str, npt.NDArray[np.float64]]] = {}
    by_head: dict[tuple[Head, str], list[tuple[float, Head, float]]] = {}
    layers = []
    for later, earlier in product(sites, sites):
        if not (kinds := _composed(later, earlier)):
            continue
        names = earlier.module, later.module
        if names not in known:
            ratios = compositions(*(modules[name] for name in names))
            known[names] = {kind: values.double().cpu().numpy() for kind, values in ratios.items()}
        expected = modules[earlier.module].output.shape[2] ** -0.5
        for kind in (kind for kind in kinds if kind in known[names]):
            grid = known[names][kind] - expected
            of_layer = {"stack": later.stack, "layer": later.layer, "kind": kind, "other_stack": earlier.stack}
            of_layer |= {"other_layer": earlier.layer, "pairs": grid.size, "mean": grid.mean(), "largest": grid.max()}
            layers.append(of_layer)
            for place, head in enumerate(later.heads):
                own = zip(grid[place], earlier.heads, strict=True)
                candidates = [*by_head.get((head, kind), []), *((value, other, expected) for value, other in own)]
                by_head[head, kind] = sorted(candidates, key=lambda c: -c[0])[:EARLIER]
    rows = [
        head._asdict()
        | {"kind": kind, "other_stack": other.stack, "other_layer": other.layer, "other_head": other.head}
        | {"composition": float(value), "random": expected}
        for (head, kind), strongest in by_head.items()
        for value, other, expected in strongest
    ]
    return rows, layers


def _composed(later: Site, earlier: Site) -> tuple[str, ...]:
    """What of a layer of heads reads the stream that an earlier one writes into: kinds of composition."""
    if later.stack == "encoder" or earlier.stack == "encoder":
        if earlier.stack == later.stack:
            return ("Q", "K", "V") if earlier.layer < later.layer else ()
        return ("K", "V") if later.stack == "cross" else ()
    order = [(site.layer, site.stack == "cross") for site in (earlier, later)]  # self-attention goes first in a layer
    return (("Q",) if later.stack == "cross" else ("Q", "K", "V")) if order[0] < order[1] else ()


def _notes(
    model: PreTrainedModel, sites: Sequence[Site], norms: NormPlaces, vocabularies: Mapping[Stack, Vocabulary], n: int
) -> list[str]:
    """What of a model the numbers leave out."""
    said = [f"Circuits: copying of the {counted(n, 'token')} that are most frequent in the corpus."]
    if "encoder" in vocabularies:
        said.append(
            "Circuits: an encoder's heads are said to copy where they write the embedding of what they attend to, as "
            "there is more than a matrix between its layers and logits, if it has any."
        )
    if not norms.beside:
        said.append(
            "Circuits: the norms of this model are on the residual stream: they are left out, with their gains."
        )
    if any("rotary" in type(module).__name__.lower() for module in model.modules()):
        said.append("Circuits: queries and keys are without their rotation, as between tokens of the same position.")
    if any(site.shared_by > 1 for site in sites):
        said.append("Circuits: heads that share keys and values have the same matrices there.")
    if unknown := [stack for stack, own in vocabularies.items() if own.target is None or own.source is None]:
        said.append(
            f"Circuits: copying is empty for {' and '.join(unknown)}, where headlens does not know embeddings and "
            "unembeddings of one vocabulary, as wide as the residual stream."
        )
    return said
