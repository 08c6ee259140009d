"""An HTML page for labelling pictures, signals and rows.

The page is one file that needs no server. It shows each instance with a menu of classes, and saves
a CSV for ``gatewise labels add``.
"""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_export.archive.choice import LabelChoice

_WIDTH: Final = 480
_HEIGHT: Final = 120
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Labels of {title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }}
article {{ border-bottom: 1px solid #8888; padding: 1em 0; }}
select {{ font: inherit; }}
img {{ image-rendering: pixelated; min-width: 12em; }}
table {{ font-size: 80%; }}
</style></head><body>
<h1>{title}: {n} instances</h1>
<p>Choose a class for each instance that you are sure of, then save. The file omits the others.</p>
{articles}
<button onclick="save()">Save labels.csv</button>
<script>
let hasUnsavedLabels = false;
addEventListener('change', () => hasUnsavedLabels = true);
addEventListener('beforeunload', event => hasUnsavedLabels && event.preventDefault());
function save() {{
  hasUnsavedLabels = false;
  const cell = text => '"' + text.replaceAll('"', '""') + '"';
  const lines = [...document.querySelectorAll('select')].filter(s => s.value)
    .map(s => cell(s.name) + ',' + cell(s.value));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([['id,label', ...lines, ''].join('\\n')]));
  link.download = 'labels.csv';
  link.click();
}}
</script></body></html>
"""


def page_of_choice(choice: LabelChoice) -> str:
    """Format a choice as an HTML page for labelling."""
    options = "".join(f"<option>{escape(str(label))}</option>" for label in choice.facts.classes)
    articles = [
        f'<article>{_instance_html(choice, row)}<p><select name="{escape(instance_id)}">'
        f"<option></option>{options}</select> {escape(choice.rows.device[row])}</p></article>"
        for row, instance_id in enumerate(choice.rows.ids.tolist())
    ]
    title = f"{choice.facts.model} {choice.facts.version}"
    return _PAGE.format(title=escape(title), n=len(articles), articles="\n".join(articles))


def _instance_html(choice: LabelChoice, row: int) -> str:
    """HTML of an instance, which is a picture, a plot of a signal, or a table of values."""
    values = choice.rows.X[row]
    shape = choice.facts.shape
    picture = _as_picture(values, shape)
    if picture is not None:
        return f'<img src="{_png_url(picture)}" alt="">'
    if len(shape) == 2:
        return _signal_svg(values.reshape(shape).astype(float))
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{value:.6g}</td></tr>"
        for name, value in zip(choice.facts.inputs, values.tolist(), strict=True)
    )
    return f"<table>{cells}</table>"


def _as_picture(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """Picture of an instance, of shape (height, width, 1 or 3); None for any other instance."""
    if len(shape) == 3 and shape[2] in (1, 3):
        image = values.reshape(shape)
    elif len(shape) == 3 and shape[0] in (1, 3):
        image = values.reshape(shape).transpose(1, 2, 0)
    elif len(shape) == 2 and values.dtype == np.uint8:
        image = values.reshape(*shape, 1)
    else:
        return None
    if image.dtype == np.uint8:
        return image
    image = image.astype(np.float64)  # float16 overflows at 255 times 257
    lowest = float(np.nanmin(image))
    spread = max(float(np.nanmax(image)) - lowest, 1e-9)
    return np.nan_to_num(255 * (image - lowest) / spread).astype(np.uint8)


def _png_url(image: NDArray[np.uint8]) -> str:
    """Encode a picture as a PNG in a data URL."""
    height, width, n_colours = image.shape
    # each line of pixels begins with a byte that names its filter; 0 is no filter
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    # 8 bits per value; colour type 0 is grey, 2 is RGB
    header = struct.pack(">II", width, height) + bytes([8, 0 if n_colours == 1 else 2, 0, 0, 0])
    contents_by_type = (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(lines.tobytes())),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(content))
        + chunk_type
        + content
        + struct.pack(">I", zlib.crc32(chunk_type + content))
        for chunk_type, content in contents_by_type
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _signal_svg(window: NDArray[np.float64]) -> str:
    """SVG with a line for each channel of a window of shape (samples, channels)."""
    lowest = float(np.nanmin(window))
    spread = max(float(np.nanmax(window)) - lowest, 1e-9)
    # all channels share one scale, and the y axis of SVG points down
    x = np.linspace(0, _WIDTH, len(window))
    lines = []
    for channel, colour in zip(window.T, _COLOURS * len(window.T), strict=False):
        y = _HEIGHT * (1 - (np.nan_to_num(channel, nan=lowest) - lowest) / spread)
        points = " ".join(f"{x_i:.1f},{y_i:.1f}" for x_i, y_i in zip(x, y, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(lines)}</svg>'
