"""JPEG images as instances: their size from the header, their values by Pillow.

A file from a stranger is refused before it is decoded if its header names another size than an
instance has, so that no small file becomes a large image, or if it has many scans, each of which
costs a pass over all of it. Decoders differ by a level or two in some values: who compares figures
to the bit decodes with one library.
"""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise.models.instances import InstanceSpec

MOST_SCANS: Final = 64
"""Of a progressive image; ten are usual."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xDB)})


def load_decoder() -> bool:
    """Load Pillow before the first image, which would wait for it; False where it is not there."""
    try:
        from PIL import Image
    except ImportError:
        return False
    Image.preinit()
    return True


def check_jpeg(content: bytes, spec: InstanceSpec) -> None:
    """Refuse what is no JPEG of an instance's size, without decoding it; raises InputError."""
    height, width, channels, _ = spec.sides
    found = _frame(content)
    if found != (height, width, channels):
        kinds = {1: "grey", 3: "colour"}
        says = f"{found[1]} x {found[0]}, {kinds.get(found[2], f'{found[2]} components')}"
        raise InputError(
            f"a JPEG image of {says}; an instance has {width} x {height}, {kinds[channels]}"
        )
    if content.count(b"\xff\xda") > MOST_SCANS:
        raise InputError(f"a JPEG image with more than {MOST_SCANS} scans")


def decode_jpeg(content: bytes, spec: InstanceSpec) -> NDArray[np.uint8]:
    """Decode an image to the values of an instance, uint8 of shape (n_values,).

    Raises InputError as :func:`check_jpeg`, if it is damaged, or if there is no Pillow.
    """
    check_jpeg(content, spec)
    height, width, channels, channels_first = spec.sides
    try:
        from PIL import Image
    except ImportError:
        raise InputError(
            "JPEG images are decoded by Pillow, which is not here: pip install 'gatewise[jpeg]'"
        ) from None
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
            if image.size != (width, height) or image.mode != ("L" if channels == 1 else "RGB"):
                raise OSError(f"{image.mode} of {image.size}")
            pixels = np.asarray(image, np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"a JPEG image that cannot be decoded: {one_line(error)}") from None
    values = pixels.reshape(height, width, channels)
    return np.ravel(values.transpose(2, 0, 1) if channels_first else values)


def _frame(content: bytes) -> tuple[int, int, int]:
    """Height, width and components that the first frame header names."""
    if content[:2] != b"\xff\xd8":
        raise InputError("not a JPEG image: it does not begin with FF D8")
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _WITHOUT_LENGTH:
            break
        if marker in _FRAMES and at + 10 <= len(content):
            height, width = content[at + 5] << 8 | content[at + 6], content[at + 7] << 8
            return height, width | content[at + 8], content[at + 9]
        at += 2 + (content[at + 2] << 8 | content[at + 3])
    raise InputError("not a JPEG image: it has no frame header")
