"""The options of a mask, read and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import zoo
from safetensors.torch import save_file
from watching import run

from headlens.attention_masks.attention_mask import AttentionMask, Controlled, PatternMask
from headlens.attention_masks.mask_options import MaskOptions, read_layers
from headlens.attention_masks.model_mask import mask_record, mask_source, parse_mask, under_mask
from headlens.attention_masks.patterns import Full, Global, Star, Window
from headlens.errors import OptionError
from headlens.options import typed_words


def test_nothing_is_masked_unless_asked_for() -> None:
    options = MaskOptions()
    assert mask_source(options) is None
    assert mask_record(options) == {}
    assert typed_words(options) == []
    model, told = zoo.ZOO["bert"].build(), list[str]()
    inputs = {"input_ids": zoo.ids((4,), 0)}
    plain = run(model, inputs)
    with under_mask(model, options, told.append):
        assert torch.equal(run(model, inputs), plain)


def test_patterns_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_mask("window:3|global") == PatternMask(Window(3) | Global(1))
    AttentionMask(torch.ones(1, 1, 4, 4) > 0, name="mine").save(tmp_path / "mask.safetensors")
    (tmp_path / "star").mkdir()
    for text in ("mask.safetensors", ".", str(tmp_path), "./mask.safetensors"):
        assert parse_mask(text).name == "mine"
    # a name is a pattern's, whatever lies in the folder
    assert parse_mask("star") == PatternMask(Star())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windwo:3", "Did you mean window?"),
        ("masks/none.safetensors", "masks/none.safetensors: there is no such mask file"),
        ("none.safetensors", "there is no such mask file"),
        ("runs/dam", "there is no such mask file"),
    ],
)
def test_what_is_no_mask(text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_mask(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        *((None, None), ("all", None), ("6-8", (6, 7, 8)), ("0, 2,4-5", (0, 2, 4, 5)), ("3", (3,)), ("1-1,1", (1,))),
        *(("first:2", (0, 1)), ("last:3", (9, 10, 11)), ("first:1,last:1", (0, 11)), ("last:12", tuple(range(12)))),
    ],
)
def test_layers(text: str | None, layers: tuple[int, ...] | None) -> None:
    assert read_layers(text, 12) == layers


@pytest.mark.parametrize(
    "text", ["", "a", "6-", "-6", "8-6", "1,,2", "1.5", "²", "first", "last:0", "last:-1", "middle:3"]
)
def test_what_are_no_layers(text: str) -> None:
    with pytest.raises(OptionError, match="is not a range of layers"):
        MaskOptions("star", layers=text)


def test_the_last_layers_are_those_of_the_model() -> None:
    model = zoo.ZOO["bert"].build()  # 3 layers
    inputs = {"input_ids": zoo.ids((6,), 0), "attention_mask": zoo.real((6,))}
    found = []
    for layers in ("last:2", "1-2", "first:2"):
        with under_mask(model, MaskOptions("star", layers=layers), print):
            found.append(run(model, inputs))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], atol=1e-4)
    with (
        pytest.raises(OptionError, match=r"--layers 'last:4': there are 3 layers\.\nGive at most last:3"),
        under_mask(model, MaskOptions("star", layers="last:4"), print),
    ):
        pass


def test_controls() -> None:
    assert mask_source(MaskOptions(no_diagonal=True)) == Controlled(PatternMask(Full()))
    star = PatternMask(Star())
    assert mask_source(MaskOptions("star", no_diagonal=True)) == Controlled(star)
    assert mask_source(MaskOptions("star", drop_random=True, mask_seed=3)) == Controlled(star, "random", 3)


@pytest.mark.parametrize("drop", ["diagonal", "random"])
def test_a_control_of_a_decoder_takes_as_many_weights_as_the_diagonal(drop: str) -> None:
    """Positions that a causal model never sees are none of them: eleven tokens lose ten weights, the first has one."""
    model = zoo.ZOO["gpt2"].build("eager").eval()
    ids = zoo.ids((11,), 0)
    options = MaskOptions(no_diagonal=True) if drop == "diagonal" else MaskOptions(drop_random=True, mask_seed=2)
    with under_mask(model, options, lambda _: None), torch.no_grad():
        (weights, *_) = model(ids, attention_mask=zoo.real((11,)), output_attentions=True, use_cache=False).attentions
    gone = (weights[0].tril() == 0).sum(dim=(1, 2)) - 11 * 10 // 2
    lost = 10 if drop == "diagonal" else 11
    assert (gone == lost).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"no_diagonal": True, "drop_random": True},
            "--mask-rules no-diagonal and --mask-rules drop-random cannot be combined",
        ),
        ({"layers": "0-1"}, "--mask-rules layers says where a mask applies, and none is given"),
        (
            {"mask": "star", "mask_seed": 1},
            "--mask-rules mask-seed only applies together with --mask-rules drop-random",
        ),
        ({"keep": 0.3}, "--mask-rules keep only applies together with --mask"),
        (
            {"mask": "runs/m", "keep_order": "least"},
            "--mask-rules keep-order only applies together with --mask-rules keep",
        ),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MaskOptions(**options)  # type: ignore[arg-type]


def test_the_same_for_another_command_line() -> None:
    options = MaskOptions("window:1|global", "0-1", drop_random=True, mask_seed=2)
    assert typed_words(options) == [
        *("--mask", "window:1|global", "--mask-rules", "layers=0-1,drop-random,mask-seed=2")
    ]
    facts = mask_record(options)["mask"]
    assert facts["layers"] == "0-1"
    assert facts["name"] == "window:width=1|global:tokens=1 without as many random positions"
    assert len(facts["sha256"]) == 64


def test_a_part_of_a_learned_mask(tmp_path: Path) -> None:
    p = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    AttentionMask(p > 0.5, name="mine").save(tmp_path / "mask.safetensors")
    save_file({"p": (p + p.mT) / 2}, tmp_path / "probabilities.safetensors")
    options = MaskOptions(str(tmp_path), keep=0.25, keep_order="least", no_diagonal=True)
    assert typed_words(options) == [
        *("--mask", str(tmp_path), "--mask-rules", "keep=0.25,keep-order=least,no-diagonal")
    ]
    source = mask_source(options)
    assert isinstance(source, Controlled)
    assert source.name == "mine@least=0.25 without the diagonal"
    with pytest.raises(OptionError, match=r"star: .*no such mask file"):
        mask_source(MaskOptions("star", keep=0.25))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_patterns_are_for_the_encoder_or_else_the_decoder(name: str) -> None:
    entry, told = zoo.ZOO[name], list[str]()
    model, inputs = entry.build(), zoo.padded(entry)
    plain = run(model, inputs)
    with under_mask(model, MaskOptions("window:1"), told.append):
        assert not torch.allclose(run(model, inputs), plain, atol=1e-3)
    assert told == []
    with under_mask(model, MaskOptions("window:0", no_diagonal=True), told.append):
        assert torch.isfinite(run(model, inputs)).all()
    assert len(told) == 1
    assert "some tokens have no key left" in told[0]
