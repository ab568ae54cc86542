"""The hundred characters of `glyphs`, and their outlines in the fonts that matplotlib ships.

Nothing here is random. A character is drawn from every face below that has it: twelve of DejaVu (sans,
mono, serif; bold; slanted) and four of STIX. Latin letters and digits come in five faces of Computer Modern
as well; those fonts have an encoding of their own, in which only these characters are where Unicode has
them.

The characters were chosen from 306 candidates: a greedy pass, letters first, kept those
that at least twelve faces have and that are not similar to an earlier one in any two faces, up to a rotation by 15
degrees or a mirror image (learners may flip their training images). The list was then shortened to a hundred by hand,
also to remove a few of the most similar pairs. ``tests/data/test_glyphs.py`` measures the final hundred.
"""

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

CHARACTERS = "ABCKMPQTUVWX25bgmntΞΣΦΨαζЖЛЫЮЉЂÆƸƛԴԷԹԿՀՃՊՖխდოპრ&@#%?$¥₹¶∞√≈≠≡≤±÷⊕⊞⊠⊂∠←↗↯↺⇈⇒⌘⌂⏏♀♂♃♅♆♠♡♪♫♬♭♮☼☿□◇▲△○◐▣◢"

UNICODE_FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
LATIN_FACES = ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10")


def faces_of(character: str) -> tuple[str, ...]:
    """The faces this character is drawn from; a face without it would draw an empty box."""
    alike = UNICODE_FACES + LATIN_FACES if character.isascii() and character.isalnum() else UNICODE_FACES
    return tuple(face for face in alike if ord(character) in _code_points(face))


def outline(character: str, face: str, side: int) -> NDArray[np.uint8]:
    """Coverage ``uint8 [side, side]``: the character's own box scaled to touch two borders, and centred."""
    font = _font(face, 2 * side)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(character))
    ink = Image.new("L", (right - left + 4, bottom - top + 4))
    ImageDraw.Draw(ink).text((2 - left, 2 - top), character, font=font, fill=255)
    ink = ink.crop(ink.getbbox())
    scale = side / max(ink.size)
    ink = ink.resize((max(1, round(ink.width * scale)), max(1, round(ink.height * scale))), Image.Resampling.BOX)
    square = Image.new("L", (side, side))
    square.paste(ink, ((side - ink.width) // 2, (side - ink.height) // 2))
    return np.asarray(square)


@cache
def outlines(character: str, side: int) -> NDArray[np.uint8]:
    """Coverage ``uint8 [F, side, side]`` in each of the character's faces."""
    return np.stack([outline(character, face, side) for face in faces_of(character)])


@cache
def _code_points(face: str) -> frozenset[int]:
    return frozenset(FT2Font(str(_file(face))).get_charmap())


@cache
def _font(face: str, pixels: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine is in every build of Pillow; the other is optional and may place ink elsewhere.
    return ImageFont.truetype(str(_file(face)), pixels, layout_engine=ImageFont.Layout.BASIC)


def _file(face: str) -> Path:
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
