"""The page for labelling pictures, signals and rows."""

import base64
import io
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gatewise_export.archive.choice import ChoiceFacts, LabelChoice
from gatewise_export.archive.label_page import page_of_choice
from tests.export.archive.archived_rows import FACTS, make_archived_rows


def make_choice(X, shape, **changed_facts):
    """Choose all rows of an array with inputs named <0>, <1> and so on."""
    rows = replace(make_archived_rows(len(X)), X=X)
    input_names = tuple(f"<{i}>" for i in range(X.shape[1]))  # HTML must escape them
    facts = msgspec.structs.replace(FACTS, shape=shape, inputs=input_names, **changed_facts)
    reasons = np.array(["even"] * len(X))
    return LabelChoice(
        rows=rows,
        choice_probability=np.ones(len(X)),
        main_reason=reasons,
        facts=facts,
        choice_facts=ChoiceFacts(shards=(), largest_correction=0.0),
    )


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (3, 4, 5), (1, 4, 5)])
def test_pictures_on_the_page_have_the_pixels_of_the_rows(shape):
    image_module = pytest.importorskip("PIL.Image")
    X = np.random.default_rng(0).integers(0, 256, (2, int(np.prod(shape))), np.uint8)
    page = page_of_choice(make_choice(X, shape))
    urls = re.findall(r"base64,([^\"]+)", page)
    for row, url in enumerate(urls):
        pixels = np.asarray(image_module.open(io.BytesIO(base64.b64decode(url))))
        expected_pixels = X[row].reshape(shape)
        if shape[0] in (1, 3):  # the channels come first
            expected_pixels = expected_pixels.transpose(1, 2, 0)
        np.testing.assert_array_equal(pixels, expected_pixels.squeeze())
    assert len(urls) == 2


def test_pictures_of_float16_span_the_whole_range():
    image_module = pytest.importorskip("PIL.Image")
    X = np.linspace(0, 1000, 20).astype(np.float16).reshape(1, 20)
    (url,) = re.findall(r"base64,([^\"]+)", page_of_choice(make_choice(X, (4, 5, 1))))
    pixels = np.asarray(image_module.open(io.BytesIO(base64.b64decode(url)))).ravel()
    assert (pixels[0], pixels[-1]) == (0, 255)
    assert (np.diff(pixels.astype(int)) > 0).all()


def test_page_draws_signals_and_shows_rows_as_tables():
    X = np.arange(12, dtype=np.float32).reshape(1, 12)
    assert page_of_choice(make_choice(X, (6, 2))).count("<polyline") == 2
    page = page_of_choice(make_choice(X, (12,), classes=("a<b", "c")))
    assert "&lt;0&gt;" in page
    assert "<option>a&lt;b</option>" in page


def test_page_fits_a_phone_and_warns_of_labels_that_are_not_saved():
    page = page_of_choice(make_choice(np.zeros((2, 3)), ()))
    assert '<meta name="viewport" content="width=device-width' in page
    assert "color-scheme: light dark" in page
    assert "addEventListener('beforeunload'" in page
