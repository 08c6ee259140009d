"""JPEG images as instances: their size from the header, their values by Pillow.

A file that anyone may have sent is refused before it is decoded if its header names another size
than an instance has, so that no small file becomes a large image, or if it has many scans, each of
which costs a pass over all of it. Decoders differ by a level or two in some values: who compares
figures to the bit decodes with one library.
"""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, one_line
from gatewise.models.instances import InstanceSpec

MOST_SCANS: Final = 64
"""Scans of a progressive image; ten are usual."""
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
    """Refuse bytes that are not a JPEG image of an instance's size, without decoding them."""
    height, width, channels, _ = spec.sides
    size = _frame(content)
    if size != (height, width, channels):
        kinds = {1: "grey", 3: "colour"}
        says = f"{size[1]} x {size[0]}, {kinds.get(size[2], f'{size[2]} components')}"
        raise InputError(
            f"a JPEG image of {says}; an instance has {width} x {height}, {kinds[channels]}"
        )
    if content.count(b"\xff\xda") > MOST_SCANS:
        raise InputError(f"a JPEG image with more than {MOST_SCANS} scans")


def decode_jpeg(content: bytes, spec: InstanceSpec) -> NDArray[np.uint8]:
    """Decode an image to an instance's values, uint8 (n_values,).

    Raises InputError as :func:`check_jpeg`, or if the image is damaged or Pillow is missing.
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
    offset = 2
    while offset + 4 <= len(content) and content[offset] == 0xFF:
        marker = content[offset + 1]
        if marker == 0xFF:  # a fill byte
            offset += 1
            continue
        if marker in _WITHOUT_LENGTH:
            break
        if marker in _FRAMES and offset + 10 <= len(content):
            # length (2 bytes), precision (1), height (2), width (2), number of components (1)
            height = content[offset + 5] << 8 | content[offset + 6]
            width = content[offset + 7] << 8 | content[offset + 8]
            return height, width, content[offset + 9]
        # the marker, and the segment with its length
        offset += 2 + (content[offset + 2] << 8 | content[offset + 3])
    raise InputError("not a JPEG image: it has no frame header")
