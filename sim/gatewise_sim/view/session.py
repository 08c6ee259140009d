"""One watch for a command: a board or plain lines, and the page if it is asked for."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from gatewise.console import note
from gatewise_sim.view.board import Board, can_draw
from gatewise_sim.view.lines import Lines
from gatewise_sim.view.state import Picture
from gatewise_sim.view.tracker import Tracker

if TYPE_CHECKING:
    from gatewise_sim.view.serve import PageServer

__all__ = ["Viewing", "open_watch"]

_SEEN: Final = 5.0  # s that a page has to learn of the end where nobody can press Ctrl-C


class Viewing(Tracker):
    """A watch that shows what it is told while it is entered; made by :func:`open_watch`.

    Attributes
    ----------
    url : str or None
        Of the page, once entered.
    """

    def __init__(self, *, serve: int | None = None, quiet: bool = False) -> None:
        super().__init__(news=self._say)
        self.url: str | None = None
        self._port, self._quiet = serve, quiet
        self._lines: Lines | None = None
        self._board: Board | None = None
        self._server: PageServer | None = None
        self._terminal = can_draw(sys.stderr)
        self._finished = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            if self._port is not None:
                from gatewise_sim.view.serve import PageServer

                self._server = PageServer(self, self._port)
                opened.callback(self._server.close)
                self.url = self._server.url
                _speak(f"watch it at {self.url}")
            if not self._quiet and self._terminal:
                self._board = opened.enter_context(Board(self))
            elif not self._quiet:
                self._lines = Lines()
            self._open = opened.pop_all()
        return self

    def report(self, path: Path | str) -> None:
        """Say where the finished report is: the board comes to its end, the page links to it.

        Parameters
        ----------
        path : Path or str
            ``report.html``; what lies beside it is served, too.
        """
        if self._board is not None:
            self._board.close()
        if self._server is not None:
            self._server.finish(Path(path))
        self._finished = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._open:
            if self._board is not None:
                self._board.close()
            if kind is None and self._server is not None:
                self._stay(self._server)

    def _stay(self, server: PageServer) -> None:
        """Let the page be looked at: until Ctrl-C on a terminal, else until it knows the end."""
        if not self._finished:
            server.finish()
        if not self._finished or not self._terminal:
            server.wait_seen(_SEEN)
            return
        _speak(f"the page stays at {self.url} until Ctrl-C")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            _speak("")

    def _say(self, picture: Picture, clock: float) -> None:
        if self._lines is not None:
            for line in self._lines.tell(picture, clock):
                _speak(line)


def open_watch(*, serve: int | None = None, quiet: bool = False) -> Viewing:
    """Make the watch of a command; to be entered.

    On a terminal (of standard error) it draws a board, elsewhere it writes a plain line now and
    then. Whatever ends it, the terminal is left as it was. Standard output is never touched.

    Parameters
    ----------
    serve : int or None
        Port of a local page that shows the same, 0 for a free one; None = no page. After a run
        whose report is finished (:meth:`Viewing.report`) the page stays until Ctrl-C where there
        is a terminal; elsewhere it goes as soon as an open one has learnt of the end.
    quiet : bool, default False
        Neither board nor lines.

    Returns
    -------
    Viewing
        A :class:`gatewise_sim.fleet.progress.ProgressListener`.

    Raises
    ------
    InputError
        On entering: if the port cannot be used.

    Examples
    --------
    >>> from gatewise_sim.fleet.progress import Snapshot
    >>> from gatewise_sim.view import open_watch
    >>> with open_watch(quiet=True) as watch:
    ...     watch.begin("ten devices for a minute", 60.0, 100)
    ...     watch.advance(Snapshot(at=30.0, answered=50, edge=40, cloud=10, done=0.5))
    ...     watch.picture().shares["cloud"]
    0.2
    """
    return Viewing(serve=serve, quiet=quiet)


def _speak(line: str) -> None:
    """Write to standard error; a closed one is no reason to stop a run."""
    try:
        note(line)
    except (OSError, ValueError):
        return
