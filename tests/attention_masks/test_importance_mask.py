"""Masks of any sparsity from learned importance, against a ranking position by position."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from headlens.attention_masks.attention_mask import AttentionMask
from headlens.attention_masks.importance_mask import ImportanceMask
from headlens.attention_masks.model_mask import parse_mask
from headlens.attention_masks.named_masks import PROBABILITIES
from headlens.errors import OptionError


def of_values(values: list[list[float]], n: int, *, structured: bool, **rules: Any) -> ImportanceMask:
    """A mask that keeps half, of one head per list: P by offset, or by pair of positions i <= j row by row."""
    p = torch.zeros(1, len(values), n, n, dtype=torch.float64)
    for head, own in enumerate(values):
        pairs = iter(own)
        for i in range(n):
            for j in range(i, n):
                ends = structured and (i in (0, n - 1) or j in (0, n - 1))
                value = own[j - i] if structured else next(pairs)
                p[0, head, i, j] = p[0, head, j, i] = 1.0 if ends else value
    diagonal = rules.pop("diagonal", True)
    if not diagonal:
        p.diagonal(dim1=-2, dim2=-1).zero_()
    return ImportanceMask(AttentionMask(p > 0.5, ends=structured, diagonal=diagonal), p, **({"keep": 0.5} | rules))


def naive_block(mask: ImportanceMask, head: int, length: int) -> list[list[bool]]:
    """Groups of positions with one learned number, kept one after the other while that comes nearer to the share."""
    p, ends = mask.probabilities[0, head], mask.source.ends
    groups: dict[object, list[tuple[int, int]]] = {}
    kept = set()
    for i in range(length):
        for j in range(length):
            if i == j and not mask.diagonal:
                continue
            if ends and (i in (0, length - 1) or j in (0, length - 1)):
                kept.add((i, j))
            else:
                groups.setdefault(abs(i - j) if ends else (min(i, j), max(i, j)), []).append((i, j))
    sign = -1 if mask.order == "most" else 1

    def rank(group: list[tuple[int, int]]) -> tuple[float, int, int]:
        i, j = group[0]
        # P of an offset stands at any position of the learned mask that is not always active.
        value = float(p[1, 1 + abs(i - j)]) if ends else float(p[i, j])
        return sign * value, abs(i - j), min(i, j)

    for group in sorted(groups.values(), key=rank):
        with_it = len(kept) + len(group)
        if abs(with_it - mask.keep * length**2) > abs(len(kept) - mask.keep * length**2):
            break
        kept.update(group)
    return [[(i, j) in kept for j in range(length)] for i in range(length)]


@st.composite
def importance_masks(draw: st.DrawFn) -> ImportanceMask:
    n, structured = draw(st.integers(2, 7)), draw(st.booleans())
    size = n if structured else n * (n + 1) // 2
    # Eighths, so that some are alike and sums are exact.
    values = draw(st.lists(st.lists(st.integers(0, 8), min_size=size, max_size=size), min_size=1, max_size=2))
    return of_values(
        [[v / 8 for v in own] for own in values],
        n,
        structured=structured,
        diagonal=draw(st.booleans()),
        keep=draw(st.integers(1, 16)) / 16,
        order=draw(st.sampled_from(["most", "least"])),
    )


@given(importance_masks(), st.integers(1, 7))
def test_what_is_kept_is_a_ranking_position_by_position(mask: ImportanceMask, length: int) -> None:
    length = min(length, mask.length)
    block = mask.block(length)
    assert block.shape == (*mask.shape, length, length)
    assert torch.equal(block, block.mT)
    for head in range(mask.shape[1]):
        assert block[0, head].tolist() == naive_block(mask, head, length)


def test_hand_made_importance() -> None:
    """Three positions, one number for each pair: 00 .9, 01 .1, 02 .8, 11 .2, 12 .7, 22 .3."""
    mask = of_values([[0.9, 0.1, 0.8, 0.2, 0.7, 0.3]], 3, structured=False, keep=1 / 3)
    assert mask.block(3)[0, 0].int().tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert replace(mask, order="least").block(3)[0, 0].int().tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
    # A text of two tokens has a ranking of its own: of its four positions 01 and 10 come last.
    assert replace(mask, keep=0.5).block(2)[0, 0].int().tolist() == [[1, 0], [0, 1]]
    assert replace(mask, keep=1.0).block(3).all()


def test_structured_masks_stay_toeplitz_and_keep_their_ends() -> None:
    mask = of_values([[0.1, 0.9, 0.2, 0.8, 0.3, 0.4, 0.0, 0.0]], 8, structured=True, keep=38 / 64)
    # 28 positions at the ends; offset 1 has 2 x 5 of the others.
    inner = mask.block(8)[0, 0, 1:-1, 1:-1]
    assert mask.block(8).sum() == 38
    assert [[int(i - j) in (1, -1) for j in range(6)] for i in range(6)] == inner.tolist()
    short = mask.block(4)[0, 0]  # 12 of 16 are ends already
    assert short.int().tolist() == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]
    assert mask.block(1).tolist() == [[[[True]]]]


@pytest.mark.parametrize("structured", [False, True])
def test_the_share_is_that_of_every_length(structured: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    size = 64 if structured else 64 * 65 // 2
    mask = of_values(torch.rand(2, size, generator=generator).tolist(), 64, structured=structured, keep=0.4)
    for length in (24, 48, 64):
        # Half an offset has at most `length` positions, half a pair one.
        slack = (length if structured else 1) / length**2
        shares = mask.block(length).double().mean(dim=(2, 3))
        assert shares.flatten().tolist() == pytest.approx([0.4, 0.4], abs=slack)


def test_a_random_order_is_the_same_for_all_heads_and_runs() -> None:
    mask = of_values([[k / 40 for k in range(36)], [0.5] * 36], 8, structured=False, order="random", keep=0.3)
    block = mask.block(8)
    assert torch.equal(block[:, :1], block[:, 1:])
    assert torch.equal(block, replace(mask).block(8))
    assert not torch.equal(block[0, 0], replace(mask, order="most").block(8)[0, 0])
    assert block[0, 0].sum() in (19, 20)  # of 19.2


def test_layers_that_were_not_learned_stay_whole() -> None:
    p = torch.rand(1, 1, 5, 5, dtype=torch.float64).expand(3, 1, 5, 5)
    learned = AttentionMask(torch.ones(3, 1, 5, 5, dtype=torch.bool), ends=True, diagonal=False, layers=(1,))
    block = ImportanceMask(learned, (p + p.mT) / 2, 0.7).block(5)
    assert block[[0, 2]].all()
    assert not block[1].diagonal(dim1=-2, dim2=-1).any()
    assert block[1, 0, 0, 1:].all()


def write(folder: Path, p: torch.Tensor) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    AttentionMask(p > 0.5, name="mine").save(folder / "mask.safetensors")
    save_file({"p": p}, folder / PROBABILITIES)
    return folder


def test_files_and_how_they_are_written(tmp_path: Path) -> None:
    p = torch.rand(1, 2, 4, 4)
    folder = write(tmp_path / "m", (p + p.mT) / 2)
    one, two = (parse_mask(f"{place}@least=0.25") for place in (folder, folder / "mask.safetensors"))
    assert isinstance(one, ImportanceMask)
    assert one.name == "mine@least=0.25"
    assert one.sha256 == two.sha256 != replace(one, keep=0.5).sha256
    assert (one.keep, one.order, one.length, one.shape) == (0.25, "least", 4, (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m@most=0", "--mask-rules keep=0 is not a share of the positions"),
        ("m@most=1.5", "--mask-rules keep=1.5 is not a share of the positions"),
        ("m@most=nan", "--mask-rules keep=nan is not a share of the positions"),
        ("m@most=half", "'half' is not a share of the positions"),
        ("alone@most=0.5", "there is no probabilities.safetensors next to the mask"),
        ("none@most=0.5", "there is no such mask file"),
        ("wrong@most=0.5", "does not hold the probabilities of this mask"),
        ("other@most=0.5", "does not hold the probabilities of this mask"),
        ("broken@most=0.5", "does not hold probabilities"),
    ],
)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    p = torch.full((1, 1, 4, 4), 0.25)
    for name in ("m", "alone", "wrong", "other", "broken"):
        write(Path(name), p)
    Path("alone", PROBABILITIES).unlink()
    save_file({"p": p[:, :, :3, :3].contiguous()}, Path("wrong", PROBABILITIES))
    save_file({"p": p * torch.nan}, Path("other", PROBABILITIES))
    Path("broken", PROBABILITIES).write_bytes(b"nothing")
    with pytest.raises(OptionError, match=message):
        parse_mask(text)


def test_orders_that_there_are_none() -> None:
    with pytest.raises(OptionError, match=r"--mask-rules keep-order=best is unknown.\nChoose most, least, random"):
        of_values([[0.5] * 3], 2, structured=False, order="best")
    mask = of_values([[0.5] * 3], 2, structured=False)
    with pytest.raises(OptionError, match="is for 2 tokens, but a sentence has 3"):
        mask.block(3)
