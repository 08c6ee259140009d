"""The run on a terminal: a board that is drawn anew where it stands.

It goes to standard error; standard output is for results.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self, TextIO

from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.text import Text

from gatewise_sim.view.draw import ASCII, UNICODE, board
from gatewise_sim.view.tracker import Tracker

__all__ = ["Board", "can_draw"]

_FRAMES: Final = 5.0  # a second, at most


def can_draw(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can be drawn on."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal and stream.isatty()


class Board:
    """Draws a tracker's picture on a terminal while it is entered.

    A thread of its own draws, at most five times a second and only what changed. It ends with the
    cursor shown, on a line of its own, whatever ended it; the last frame stays.

    Parameters
    ----------
    tracker : Tracker
    console : Console, optional
        Standard error by default.
    """

    def __init__(self, tracker: Tracker, console: Console | None = None) -> None:
        self._tracker = tracker
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        # Standard output is somebody else's: left alone even while the board stands.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
        self._shown: list[Text] = []
        self._size = self._console.size
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)

    def __enter__(self) -> Self:
        self._live.start()
        try:
            self._draw()
            self._thread.start()
        except BaseException:
            self._live.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Draw the last frame and leave the terminal as it was. May be called again."""
        if not self._live.is_started:
            return
        self._done.set()
        try:
            self._thread.join(2.0)
            self._draw()
        finally:
            try:
                self._live.stop()
            finally:
                self._console.show_cursor(True)

    def frame(self) -> list[Text]:
        """Get the lines as they are now."""
        size = self._console.size
        marks = ASCII if self._console.options.ascii_only else UNICODE
        # One line less than there are: the cursor stands below the board at the end.
        return board(self._tracker.picture(), size.width, max(size.height - 1, 1), marks)

    def _run(self) -> None:
        while not self._done.wait(1.0 / _FRAMES):
            self._draw()

    def _draw(self) -> None:
        lines, size = self.frame(), self._console.size
        if size != self._size:
            # A terminal breaks old lines anew when it gets narrower: nobody knows where they are.
            self._size = size
            self._console.control(Control.clear(), Control.home())
        elif lines == self._shown:
            return
        self._shown = lines
        self._live.update(Group(*lines), refresh=True)
