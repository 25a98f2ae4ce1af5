"""Names of masks: each value has one, and it is read back as the same value."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.attention_masks.named_masks import (
    CONNECTIONS,
    FULL_ATTENTION,
    ImportanceShare,
    LearnedDegrees,
    LearnedSpans,
    MaskFile,
    NamedMask,
    PatternName,
    Removal,
    TextGraph,
    ZeroedScores,
    parse_named_mask,
    strength_of,
)
from headlens.attention_masks.patterns import PATTERNS
from headlens.errors import OptionError

WORDS = st.text(string.ascii_letters + string.digits + " =,|:/._-~", max_size=12)
PATHS = st.builds("{}/{}".format, st.sampled_from(["runs", "../m", "~", "/tmp/x y"]), WORDS)
STRENGTHS = st.floats(0, 1e300)
PATTERN_NAMES = st.sampled_from(sorted(PATTERNS))
STORED = st.one_of(
    st.builds("{}{}".format, PATTERN_NAMES, st.sampled_from(["", ":1", "|star"])).map(PatternName),
    PATHS.map(MaskFile),
    st.builds(ImportanceShare, PATHS, st.sampled_from(["most", "least", "random"]), st.floats(0, 1)),
)
ZEROABLE = STORED | WORDS.map(TextGraph)
KINDS = st.lists(st.sampled_from(CONNECTIONS), min_size=1, unique=True).map(tuple)
NAMED = st.one_of(
    ZEROABLE,
    ZEROABLE.filter(lambda mask: mask != FULL_ATTENTION).map(ZeroedScores),
    st.builds(LearnedDegrees, STRENGTHS, KINDS),
    st.builds(LearnedSpans, STRENGTHS, st.integers(1, 10**8)),
    st.sampled_from(["attention", "layers"]).map(Removal),
)


@given(NAMED)
def test_a_name_is_read_back_as_the_same_value(named: NamedMask) -> None:
    assert parse_named_mask(str(named)) == named


@given(st.sampled_from(["", "zero:", "graph:", "degrees:mu=", "spans:mu=", "m@most="]), st.text())
def test_whatever_is_written_is_refused_or_has_a_name_that_stays(prefix: str, rest: str) -> None:
    try:
        named = parse_named_mask(text := prefix + rest)
    except OptionError:
        return
    assert parse_named_mask(str(named)) == named
    if isinstance(named, PatternName | MaskFile | TextGraph):
        assert str(named) == text


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("full", FULL_ATTENTION),
        ("star", PatternName("star")),
        ("Window : 3|global:1", PatternName("Window : 3|global:1")),
        ("stra", MaskFile("stra")),
        ("runs/dam/masks/penalty-0.1", MaskFile("runs/dam/masks/penalty-0.1")),
        ("m/mask.safetensors@least=0.30", ImportanceShare("m", "least", 0.3)),
        ("graph:lexical:degree=4", TextGraph("lexical:degree=4")),
        ("degrees:mu=1e-05", LearnedDegrees(1e-5)),
        ("degrees:mu=0.1,kinds=global+random", LearnedDegrees(0.1, ("global", "random"))),
        ("spans:mu=1,ramp=8", LearnedSpans(1.0, 8)),
        ("drop-attention", Removal("attention")),
        ("zero:random:2", ZeroedScores(PatternName("random:2"))),
        ("zero:graph:syntax", ZeroedScores(TextGraph("syntax"))),
        ("zero:m@most=0.5", ZeroedScores(ImportanceShare("m", "most", 0.5))),
    ],
)
def test_kinds(name: str, named: NamedMask) -> None:
    assert parse_named_mask(name) == named


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("degrees:mu=much", "not a mask that can be learned"),
        ("degrees:mu=-1", "not a mask that can be learned"),
        ("degrees:mu=nan", "not a mask that can be learned"),
        ("degrees:", "not a mask that can be learned"),
        ("degrees:mu=1,kinds=local", "'local' is not a kind of degree"),
        ("spans:mu=1,ramp=0", "not a mask that can be learned"),
        ("spans:mu=1,kinds=global", "not a mask that can be learned"),
        ("zero:full", "scores cannot be zeroed"),
        ("zero:degrees:mu=1", "scores cannot be zeroed"),
        ("zero:zero:star", "scores cannot be zeroed"),
        ("zero:drop-layers", "scores cannot be zeroed"),
        ("m@most=half", "'half' is not a share of the positions"),
    ],
)
def test_what_is_refused(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_named_mask(name)


def test_values_of_ten_digits() -> None:
    """Two trainings whose names are the same are the same."""
    assert LearnedDegrees(0.12345678901) == LearnedDegrees(0.123456789)
    assert strength_of("spans:mu=0.123456789") == 0.123456789
    with pytest.raises(OptionError, match="'star' is not a mask that is learned"):
        strength_of("star")
