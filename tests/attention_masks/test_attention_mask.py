"""Masks, their rules and controls, and the files that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from headlens.attention_masks.attention_mask import AttentionMask, Controlled, PatternMask
from headlens.attention_masks.patterns import Full, Random, Window
from headlens.errors import OptionError, OutputError


def drawn(layers: int = 2, heads: int = 3, n: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.rand(layers, heads, n, n, generator=torch.Generator().manual_seed(seed)) < 0.4


@st.composite
def masks(draw: st.DrawFn) -> AttentionMask:
    shape = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 7))
    some = st.lists(st.integers(0, shape[0] - 1), unique=True).map(tuple)
    return AttentionMask(
        drawn(*shape, draw(st.integers(0, 99))),
        ends=draw(st.booleans()),
        diagonal=draw(st.booleans()),
        name=draw(st.sampled_from(["mask", "a|b", "ä"])),
        stack=draw(st.sampled_from([None, "encoder", "decoder"])),
        metadata=draw(st.dictionaries(st.sampled_from("xyz"), st.text(max_size=3))),
        layers=draw(st.none() | some),
    )


@given(masks(), st.integers(1, 7))
def test_a_block_follows_the_rules_position_by_position(mask: AttentionMask, length: int) -> None:
    length = min(length, mask.length)
    found = mask.block(length)
    assert found.shape == (*mask.shape, length, length)
    for layer in range(mask.shape[0]):
        ruled = mask.layers is None or layer in mask.layers
        for head in range(mask.shape[1]):
            for i in range(length):
                for j in range(length):
                    own = bool(mask.allowed[layer, head, i, j])
                    own |= ruled and mask.ends and (i in (0, length - 1) or j in (0, length - 1))
                    own &= mask.diagonal or i != j or not ruled
                    assert bool(found[layer, head, i, j]) is own


@given(masks())
def test_sparsity_is_the_share_of_masked_positions(mask: AttentionMask) -> None:
    whole = mask.block(mask.length).tolist()
    for layer in range(mask.shape[0]):
        for head in range(mask.shape[1]):
            count = sum(not cell for row in whole[layer][head] for cell in row)
            assert int(mask.masked[layer, head]) == count
            assert float(mask.sparsity[layer, head]) == count / mask.length**2


@given(masks())
def test_files_hold_all_of_it(tmp_path_factory: Any, mask: AttentionMask) -> None:
    path = tmp_path_factory.mktemp("masks") / "mask.safetensors"
    assert mask.save(path) == path
    for place in (path, path.parent):
        read = AttentionMask.load(place)
        assert torch.equal(read.allowed, mask.allowed)
        assert (read.ends, read.diagonal, read.name, read.stack) == (mask.ends, mask.diagonal, mask.name, mask.stack)
        assert (read.metadata, read.layers) == (mask.metadata, mask.layers)
        assert read.sha256 == mask.sha256
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_same_mask_gives_the_same_bytes(tmp_path: Path) -> None:
    """The library writes the header in any order; other readers take ours."""
    mask = AttentionMask(drawn(), metadata={"b": "é", "a": "2", "c": "3"}, name="m")
    files = [mask.save(tmp_path / f"{number}.safetensors").read_bytes() for number in range(8)]
    assert len(set(files)) == 1
    size = int.from_bytes(files[0][:8], "little")
    assert size % 8 == 0
    assert list(json.loads(files[0][8 : 8 + size])) == ["__metadata__", "allowed"]
    assert torch.equal(load_file(tmp_path / "0.safetensors")["allowed"], mask.allowed)


def test_the_hash_is_of_what_is_masked() -> None:
    mask = AttentionMask(drawn())
    flipped = mask.allowed.clone()
    flipped[1, 2, 5, 5] ^= True
    ended = AttentionMask(drawn(), ends=True), AttentionMask(drawn(), ends=True, layers=(1,))
    other = [AttentionMask(flipped), *ended, mask.without_diagonal()]
    assert len({m.sha256 for m in [mask, *other]}) == 5
    assert AttentionMask(drawn(), name="other", metadata={"a": "b"}).sha256 == mask.sha256


@given(masks(), st.integers(1, 7))
def test_without_diagonal_nothing_else_differs(mask: AttentionMask, length: int) -> None:
    length = min(length, mask.length)
    assert torch.equal(mask.without_diagonal().block(length), mask.block(length) & ~torch.eye(length, dtype=torch.bool))


def test_rules_of_layers_that_are_not_there() -> None:
    with pytest.raises(OptionError, match="its rules refer to layers that it does not have"):
        AttentionMask(drawn(2), layers=(0, 2))


def test_without_diagonal_also_where_ends_are_open() -> None:
    found = AttentionMask(drawn(1, 1, 4), ends=True).without_diagonal().block(3)[0, 0]
    assert not found.diagonal().any()
    assert found[0, 1:].all()
    assert found[2, :2].all()


def test_unions_allow_what_either_allows() -> None:
    one, two = AttentionMask(drawn(1, 3), name="one"), AttentionMask(drawn(2, 1, seed=1), name="two")
    union = one | two
    assert union.name == "one|two"
    assert torch.equal(union.allowed, one.allowed | two.allowed)
    ended = one | AttentionMask(drawn(2, 1, seed=1), ends=True)
    assert ended.block(6)[:, :, 0].all()
    both = AttentionMask(drawn(), ends=True) | AttentionMask(drawn(seed=1), ends=True)
    assert both.ends  # also of shorter sentences
    for other in (AttentionMask(drawn(n=5)), AttentionMask(drawn(3)), AttentionMask(drawn(), stack="decoder")):
        with pytest.raises(OptionError, match="The masks mask and mask cannot be combined"):
            AttentionMask(drawn()) | other


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (torch.ones(1, 1, 3, 3), r"float32 tensor of the shape \(1, 1, 3, 3\)"),
        (torch.ones(1, 3, 3, dtype=torch.bool), r"\(1, 3, 3\)"),
        (torch.ones(1, 1, 3, 4, dtype=torch.bool), r"\(1, 1, 3, 4\)"),
        (torch.ones(1, 0, 3, 3, dtype=torch.bool), r"\(1, 0, 3, 3\)"),
    ],
)
def test_what_is_no_mask_is_refused(tensor: torch.Tensor, shown: str) -> None:
    with pytest.raises(OptionError, match=shown):
        AttentionMask(tensor)


def test_masks_of_cross_attention_are_refused() -> None:
    with pytest.raises(OptionError, match="cross-attention"):
        AttentionMask(drawn(), stack="cross")


def test_sentences_longer_than_the_mask_are_told() -> None:
    with pytest.raises(OptionError, match="mask m is for 6 tokens, but a sentence has 7"):
        AttentionMask(drawn(), name="m").block(7)


RULES = {"ends": False, "diagonal": True, "name": "m", "stack": None}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "holds no attention mask"),
        ({"format": "something else"}, "holds no attention mask"),
        ({"mask": "{"}, "cannot be read as a mask"),
        ({"mask": "[]"}, "does not say how its mask is to be applied"),
        ({"mask": json.dumps(RULES | {"ends": 1})}, "does not say how its mask is to be applied"),
        ({"mask": json.dumps(RULES | {"stack": "tower"})}, "no stack 'tower'"),
    ],
)
def test_files_that_hold_no_mask_are_refused(tmp_path: Path, header: dict[str, str] | None, message: str) -> None:
    path = tmp_path / "mask.safetensors"
    usual = {"format": "headlens attention mask 1", "mask": json.dumps(RULES)}
    save_file({"allowed": drawn()}, path, None if header is None else usual | header)
    with pytest.raises(OptionError, match=message):
        AttentionMask.load(path)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no tensors")
    for path, message in (
        (broken, "cannot be read as a mask"),
        (tmp_path / "x", "no such mask file"),
        (tmp_path, "no"),
    ):
        with pytest.raises(OptionError, match=message):
            AttentionMask.load(path)


def test_a_folder_of_other_masks_tells_of_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        AttentionMask(drawn()).save(tmp_path / f"{name}.safetensors")
    with pytest.raises(OptionError, match=r"there is no mask\.safetensors in this folder") as told:
        AttentionMask.load(tmp_path)
    assert f"Give one of: {tmp_path / 'a.safetensors'}, {tmp_path / 'b.safetensors'}." in str(told.value)
    sweep = tmp_path / "masks"
    (sweep / "penalty-0.1").mkdir(parents=True)
    AttentionMask(drawn()).save(sweep / "penalty-0.1" / "mask.safetensors")
    with pytest.raises(OptionError) as told:
        AttentionMask.load(sweep)
    assert str(told.value).endswith(f"Give one of: {sweep / 'penalty-0.1' / 'mask.safetensors'}.")


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Cannot write"):
        AttentionMask(drawn()).save(tmp_path / "file" / "mask.safetensors")


def test_a_pattern_is_made_for_every_length() -> None:
    source = PatternMask(Random(1) | Window(1))
    assert source.shape == (1, 1)
    for n in (1, 5, 9):
        assert torch.equal(source.block(n)[0, 0], torch.tensor((Random(1) | Window(1)).allowed(n)))
    mask = source.of_length(9)
    assert mask.metadata == {"pattern": source.name, "n": "9"}
    assert torch.equal(mask.block(9), source.block(9))
    assert PatternMask(Window(1)).sha256 != PatternMask(Window(2)).sha256


@given(masks(), st.integers(1, 7), st.integers(0, 5))
def test_random_drops_are_as_many_as_the_diagonal_and_elsewhere(mask: AttentionMask, length: int, seed: int) -> None:
    length = min(length, mask.length)
    before, eye = mask.block(length), torch.eye(length, dtype=torch.bool)
    found = Controlled(mask, "random", seed).block(length)
    gone = before & ~found
    assert not (found & ~before).any()
    assert not (gone & eye).any()
    free = (before & ~eye).sum(dim=(2, 3))
    assert torch.equal(gone.sum(dim=(2, 3)), torch.minimum((before & eye).sum(dim=(2, 3)), free))
    assert torch.equal(found, Controlled(mask, "random", seed).block(length))


@given(masks(), st.integers(1, 7), st.integers(0, 5))
def test_random_drops_of_a_decoder_are_positions_that_it_sees(mask: AttentionMask, length: int, seed: int) -> None:
    length = min(length, mask.length)
    before, eye = mask.block(length), torch.eye(length, dtype=torch.bool)
    gone = before & ~Controlled(mask, "random", seed, causal=True).block(length)
    assert not gone.triu().any()
    seen = before.tril(-1).sum(dim=(2, 3))
    assert torch.equal(gone.sum(dim=(2, 3)), torch.minimum((before & eye).sum(dim=(2, 3)), seen))


def test_controls_without_the_diagonal_and_other_seeds() -> None:
    full = PatternMask(Full())
    assert torch.equal(Controlled(full).block(5)[0, 0], ~torch.eye(5, dtype=torch.bool))
    blocks = [Controlled(full, "random", seed).block(9) for seed in range(4)]
    assert len({b.numpy().tobytes() for b in blocks}) == 4
    assert all(int((~b).sum()) == 9 for b in blocks)
    names = {c.sha256 for c in (Controlled(full), Controlled(full, "random"), Controlled(full, "random", 1))}
    assert len(names) == 3
