"""Write the README's pictures into docs/pictures; `make pictures` runs this after the demo.

    python docs/make_pictures.py demo-out docs/pictures

`gatewise frontier --plot` draws the frontier; the report is a screenshot of its page in Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from gatewise.cli import main as gatewise

#: Options of Chromium for pictures without a window, which turn off its requests to the network.
#: Without its sandbox it also runs as root, such as in a container; the page is our own.
BROWSER_OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
]  # fmt: skip
REPORT_SIZE = (1080, 1190)  # px: the figures and the first two plots


def main(demo: Path, folder: Path) -> None:
    """Write frontier.png and report.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work_dir = Path(scratch)
        plot_options = ["--plot", str(work_dir / "frontier.png")]
        exit_status = gatewise(["frontier", str(demo / "bundle"), *plot_options])
        if exit_status:
            raise SystemExit(exit_status)
        save_screenshot(demo / "report.html", work_dir / "report.png", REPORT_SIZE)
        for picture in ("frontier.png", "report.png"):
            shrink(work_dir / picture, folder / picture)


def save_screenshot(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Save a screenshot of a page as PNG; `size` is the width and height of the window in px."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("make pictures needs Chromium: install it (apt install chromium)")
    window = f"--window-size={size[0]},{size[1]}"
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *BROWSER_OPTIONS, f"--user-data-dir={profile}", window]
        subprocess.run(
            [*command, f"--screenshot={picture}", page.resolve().as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def shrink(source: Path, picture: Path) -> None:
    """Save a picture as a small PNG with 96 colours, which include the rare ones."""
    with Image.open(source) as image:
        reduced = image.convert("RGB").quantize(
            96, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        reduced.save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
