"""Models under a graph of each text, against their own eager attention with a naive 4-D mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zoo
from graph_masks import token_mask
from naive_masking import float_mask
from torch import Tensor

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.attention.session import AttentionSession
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.corpora.alignment import Alignment
from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.sentence import Sentence
from headlens.corpora.word_graphs import GraphCache
from headlens.errors import OptionError

LOWEST = float(np.finfo(np.float32).min)


def texts() -> list[EncodedSequence]:
    """The zoo's texts: a special token at both ends; the first word has two tokens, all others one."""
    found = []
    for row, length in zip(zoo.ids(zoo.LENGTHS, 1).tolist(), zoo.LENGTHS, strict=True):
        inner = [max(n - 1, 0) for n in range(length - 2)]
        kinds = (int(TokenKind.SPECIAL), *[0] * len(inner), int(TokenKind.SPECIAL))
        alignment = Alignment((-1, *inner, -1), tuple(range(max(inner) + 1)), max(inner) + 1, 0, 0)
        found.append(EncodedSequence(tuple(row[:length]), kinds, ((0, 0),) * length, alignment, Sentence("", ())))
    return found


def book() -> tuple[GraphCache, list[np.ndarray]]:
    """Random graphs, and the masks they give by themselves."""
    found, masks, rng = GraphCache("random"), [], np.random.default_rng(0)
    for text in texts():
        edges = np.triu(rng.random((text.n_units, text.n_units)) < 0.3, k=1)
        found.add(text, edges | edges.T)
        masks.append(token_mask(edges | edges.T, text))
    return found, masks


def inputs() -> dict[str, Any]:
    return {"input_ids": zoo.ids(zoo.LENGTHS, 1), "attention_mask": zoo.real(zoo.LENGTHS)}


def expected(name: str) -> Tensor:
    """Row by row, for the rule of a text is not a function of its length."""
    _, masks = book()
    longest, rows = max(zoo.LENGTHS), []
    for mask, length in zip(masks, zoo.LENGTHS, strict=True):
        own = float_mask([length], lambda i, j, n, mask=mask: bool(mask[i, j]))  # type: ignore[misc]
        rows.append(torch.nn.functional.pad(own, (0, longest - length, 0, longest - length), value=LOWEST))
    with torch.no_grad():
        found: Tensor = zoo.ZOO[name].build("eager")(**inputs() | {"attention_mask": torch.cat(rows)})[0]
    return found


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "albert", "roberta"])
def test_every_text_has_its_own_mask(name: str, kernel: str) -> None:
    model, edit = zoo.ZOO[name].build(kernel), MaskEdit(book()[0])
    declared = BatchTokens(Tokens.only_real(zoo.real(zoo.LENGTHS), zoo.ids(zoo.LENGTHS, 1)))
    with AttentionSession(model, edits=[edit]) as session, session.batch(declared), torch.no_grad():
        ours = model(**inputs())[0]
    with attach_edit(model, edit), torch.no_grad():
        kept = model(**inputs())[0]
    theirs, plain = expected(name), model(**inputs())[0]
    for row, length in enumerate(zoo.LENGTHS):
        assert torch.allclose(ours[row, :length], theirs[row, :length], atol=2e-5)
        assert torch.allclose(kept[row, :length], theirs[row, :length], atol=2e-5)
    assert (ours - plain).abs().max() > 1e-2


def test_some_layers_only() -> None:
    model = zoo.ZOO["bert"].build()
    found = []
    for layers in (None, (0,), (2,), ()):
        with attach_edit(model, MaskEdit(book()[0], layers)), torch.no_grad():
            found.append(model(**inputs())[0])
    with torch.no_grad():
        plain = model(**inputs())[0]
    assert torch.equal(found[3], plain)
    assert all(not torch.allclose(one, plain, atol=1e-3) for one in found[:3])
    assert not torch.allclose(found[1], found[2], atol=1e-3)


def test_who_does_not_say_which_tokens_these_are_is_told() -> None:
    model = zoo.ZOO["bert"].build()
    unnamed = BatchTokens(Tokens.only_real(zoo.real(zoo.LENGTHS)))
    session = AttentionSession(model, edits=[MaskEdit(book()[0])])
    with session, session.batch(unnamed), pytest.raises(OptionError, match="the tokens of the batch were not declared"):
        model(**inputs())
    other = inputs() | {"input_ids": zoo.ids(zoo.LENGTHS, 9)}
    with attach_edit(model, MaskEdit(book()[0])), pytest.raises(OptionError, match="has no graph"):
        model(**other)


def test_gradients_flow_as_through_any_mask() -> None:
    model = zoo.ZOO["bert"].build()
    with attach_edit(model, MaskEdit(book()[0])):
        model(**inputs())[0].sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
