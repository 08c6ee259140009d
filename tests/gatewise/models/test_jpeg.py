"""JPEG files: the values that Pillow gives, and refusals before anything is decoded."""

from __future__ import annotations

import io
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gatewise.errors import InputError
from gatewise.models.instances import InstanceSpec
from gatewise.models.jpeg import MOST_SCANS, check_jpeg, decode_jpeg
from tests.support.shared_data import shared_data

GREY = InstanceSpec((24, 40), "uint8", "jpeg")
COLOUR = InstanceSpec((24, 40, 3), "uint8", "jpeg")


def jpeg(shape: tuple[int, ...], seed: int = 0, **options: Any) -> bytes:
    """A smooth random image as a file."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, *shape[2:]), np.uint8)
    image = Image.fromarray(coarse).resize((shape[1], shape[0]))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"\xff\xc0" * 50}])
def test_values_are_those_of_the_image(options: dict[str, Any]) -> None:
    for shape, same in (((24, 40), (24, 40, 1)), ((24, 40, 3), (24, 40, 3))):
        file = jpeg(shape, **options)
        pixels = np.asarray(Image.open(io.BytesIO(file)))
        assert pixels.shape == shape
        for given in (shape, same):
            found = decode_jpeg(file, InstanceSpec(given, "uint8", "jpeg"))
            assert found.dtype == np.uint8
            assert np.array_equal(found, pixels.ravel())
        first = decode_jpeg(file, InstanceSpec((same[2], 24, 40), "uint8", "jpeg"))
        assert np.array_equal(first.reshape(-1, 24, 40)[-1], pixels.reshape(same)[:, :, -1])


def test_real_files() -> None:
    data = np.load(shared_data("cifar10_jpeg.npz"))
    offsets = data["offset"][:51]
    content = data["jpeg"][: offsets[-1]].tobytes()
    spec = InstanceSpec((32, 32, 3), "uint8", "jpeg")
    values = [decode_jpeg(content[a:b], spec) for a, b in pairwise(offsets)]
    assert np.array(values).shape == (50, 3072)
    assert 90 < np.mean(values) < 150


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    file = jpeg((24, 40))
    at = file.index(b"\xff\xc0") + 5
    bomb = file[:at] + b"\xff\xff\xff\xff" + file[at + 4 :]
    scan = file[file.index(b"\xff\xda") : -2]
    many = file[:-2] + MOST_SCANS * scan + file[-2:]

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Image, "open", opened)
    for content, spec, why in (
        (bomb, GREY, "65535 x 65535, grey; an instance has 40 x 24, grey"),
        (many, GREY, "more than 64 scans"),
        (file, COLOUR, "40 x 24, grey; an instance has 40 x 24, colour"),
        (jpeg((40, 24)), GREY, "24 x 40"),
        (b"\x89PNG\r\n", GREY, "not a JPEG image"),
        (b"", GREY, "not a JPEG image"),
        (file[:at], GREY, "no frame header"),
    ):
        with pytest.raises(InputError, match=why):
            decode_jpeg(content, spec)


def test_damaged_files_are_refused_or_give_values_in_bounded_time() -> None:
    rng, began, refused = np.random.default_rng(0), time.perf_counter(), 0
    for n in range(300):
        content = bytearray(jpeg((24, 40, 3), seed=n % 5, progressive=bool(n % 2)))
        for at in rng.integers(0, len(content), 1 + n % 7):
            content[at] = rng.integers(256)
        cut = bytes(content[: rng.integers(len(content))] if n % 3 == 0 else content)
        try:
            assert decode_jpeg(cut, COLOUR).shape == (2880,)
        except InputError:
            refused += 1
    assert refused > 90
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [((8,), "uint8", "no image"), ((8, 8, 2), "uint8", "no image"), ((8, 8), "int8", "uint8")],
)
def test_only_images_of_uint8_are_files(shape: tuple[int, ...], dtype: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        InstanceSpec(shape, dtype, "jpeg")
    with pytest.raises(InputError, match="encoding must be"):
        InstanceSpec((8, 8), "uint8", "png")


def test_a_check_needs_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    file = jpeg((24, 40))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    check_jpeg(file, GREY)
    with pytest.raises(InputError, match=r"pip install 'gatewise\[jpeg\]'"):
        decode_jpeg(file, GREY)
