"""Draw the pictures of README into docs/pictures; `make pictures` calls it after the demo.

    python docs/make_pictures.py demo-out docs/pictures

The frontier is what `gatewise frontier --plot` draws; the report is what Chromium shows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from gatewise.cli import main as gatewise

#: Chromium, without anything that looks for the network.
BROWSER = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
]  # fmt: skip
REPORT_SIZE = (1080, 1190)  # px: the figures and the first two plots


def main(demo: Path, folder: Path) -> None:
    """Write frontier.png and report.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        drawn = Path(name)
        if gatewise(["frontier", str(demo / "bundle"), "--plot", str(drawn / "frontier.png")]):
            raise SystemExit(1)
        photograph(demo / "report.html", drawn / "report.png", REPORT_SIZE)
        for picture in ("frontier.png", "report.png"):
            shrink(drawn / picture, folder / picture)


def photograph(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Show a page in a window of a size in px, and save it as PNG."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("make pictures needs Chromium: install it (apt install chromium)")
    window = f"--window-size={size[0]},{size[1]}"
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *BROWSER, f"--user-data-dir={profile}", window]
        subprocess.run(
            [*command, f"--screenshot={picture}", page.resolve().as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def shrink(source: Path, picture: Path) -> None:
    """Save a picture with 96 colours, rare ones among them, as small as PNG goes."""
    with Image.open(source) as image:
        few = image.convert("RGB").quantize(
            96, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
