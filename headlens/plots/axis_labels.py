"""Text from models and corpora, made safe to draw: no mathtext, no missing glyphs."""

from __future__ import annotations

from functools import cache

UNKNOWN = "□"
_VISIBLE = {"\n": "↵", "\r": "↵", "\t": "⇥", "\u00a0": " ", "\u200b": ""}

# Fonts for other scripts, by system; used when installed, after the one that matplotlib brings.
_CANDIDATES = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Source Han Sans SC", "WenQuanYi Zen Hei",
    "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Malgun Gothic", "Noto Sans Devanagari", "Noto Sans Thai",
    "Arial Unicode MS",
)  # fmt: skip


@cache
def font_family() -> list[str]:
    """Returns the names of the fonts that text is drawn in, the first that has a letter: those that are installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in _CANDIDATES if name in installed]]


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in font_family()]
    return frozenset(code for font in fonts for code in font.get_charmap())


def drawable_text(text: str) -> str:
    """Returns text that matplotlib draws as it stands, in the fonts of `font_family`.

    Dollar signs are escaped (they would open a formula); line breaks stay, since titles have them;
    characters that cannot be printed, or for which no installed font has a glyph, become `□`.
    """
    drawn = {c for c in text if c == "\n" or (c.isprintable() and ord(c) in _glyphs())}
    return "".join(c if c in drawn else _VISIBLE.get(c, UNKNOWN) for c in text).replace("$", r"\$")


def token_label(token: str, longest: int = 16) -> str:
    """Returns a token as a tick label: `drawable_text`, with visible white space, cut to `longest` characters."""
    label = "".join(_VISIBLE.get(c, c) for c in token)
    return drawable_text(label if len(label) <= longest else label[: longest - 1] + "…")
