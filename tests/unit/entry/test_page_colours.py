"""The page's colours, in light and in dark: text can be read on all it stands on, and what is no text can be told apart."""

from __future__ import annotations

import re

import pytest

from millstream.entry.page import files

GROUNDS = ("background", "surface", "raised")
TEXTS = ("text", "quiet", "accent", "good", "warning", "bad")
SHAPES = ("border", "one", "two", "three", "four", "five", "six")
PAIRS = {
    name: pair
    for name, *pair in re.findall(
        r"--([\w-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\);", files()["base.css"].content.decode()
    )
}


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str, scheme: int) -> float:
    lighter, darker = sorted((luminance(PAIRS[name][scheme]) for name in (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough(scheme: int) -> None:
    for ground in GROUNDS:
        for text in TEXTS:
            assert contrast(text, ground, scheme) >= 4.5, (text, ground)
        for shape in SHAPES:
            assert contrast(shape, ground, scheme) >= 3, (shape, ground)
    assert contrast("on-accent", "accent", scheme) >= 4.5


def test_every_colour_that_is_used_is_declared() -> None:
    used = {name for file in files().values() for name in re.findall(r"var\(--([\w-]+)\)", file.content.decode())}
    assert used - {"mono"} <= PAIRS.keys()
