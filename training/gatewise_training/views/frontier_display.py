"""Plot of accuracy against cost: operating points and their hull, also for smaller devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewise.formats import byte_size
from gatewise.operating_point import OperatingPoint


class FrontierDisplay:
    """Plot of accuracy against cost, of the :class:`.Frontier` of one system or several.

    Parameters
    ----------
    frontier : Frontier
    name : str, default ""
        Its label.

    Examples
    --------
    ``FrontierDisplay.from_estimator(system, name="staged").ax_.figure.savefig("f.png")``
    draws one; pass ``ax=display.ax_`` to put the next system into the same plot.
    """

    def __init__(self, frontier: Any, *, name: str = "") -> None:
        self.frontier = frontier
        self.name = name

    @classmethod
    def from_estimator(
        cls, system: Any, *, name: str | None = None, ax: Any = None
    ) -> FrontierDisplay:
        """Plot the frontier of a fitted system.

        Parameters
        ----------
        system : a fitted cascade or budgeted model
        name : str, optional
            Its label; the class's name by default.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        FrontierDisplay
            With `ax_` and `figure_`.
        """
        display = cls(system.frontier_, name=type(system).__name__ if name is None else name)
        return display.plot(ax=ax, active=system.operating_point_)

    def plot(self, *, ax: Any = None, active: OperatingPoint | None = None) -> FrontierDisplay:
        """Draw the points faintly, the hull as a line, and a ring around the active point.

        A dashed line marks the accuracy from which losses are measured. Dotted lines are the hulls
        of the points within an eighth and a 64th of the largest size, where they differ.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.
        active : OperatingPoint, optional
            Operating point with the ring.

        Returns
        -------
        FrontierDisplay
            Itself, with `ax_` and `figure_`.
        """
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(6.4, 4.2), layout="constrained").subplots()
        points, hull = self.frontier.points, self.frontier.hull().points
        line = ax.plot(*_xy(hull), marker=".", label=self.name)[0]
        ax.plot(*_xy(points), ".", alpha=0.3, color=line.get_color())
        for size in self._smaller_sizes():
            curve = self.frontier.within_bytes(size).hull().points
            if set(curve) <= set(points):
                continue  # no model was fitted for this size
            ax.plot(*_xy(curve), ":", linewidth=1.0, label=f"{self.name} in {byte_size(size)}")
        if active is not None:
            ring = {"fillstyle": "none", "markersize": 11, "markeredgewidth": 1.8}
            label = f"{self.name}, active point".removeprefix(", ")
            ax.plot([active.cost], [active.merit], "o", color=line.get_color(), label=label, **ring)
        names = ("high-cost model", "reference")
        n_references = sum(str(artist.get_label()).endswith(names) for artist in ax.lines)
        # offset dashes, so that equal references of several systems stay visible
        dashes = (6.0 * n_references, (6.0, 6.0))
        reference = {"color": line.get_color(), "linestyle": dashes, "linewidth": 1.0}
        has_cloud = any(point.offload_rate for point in points)
        label = f"{self.name}, {names[0] if has_cloud else names[1]}".removeprefix(", ")
        ax.axhline(self.frontier.reference_merit, label=label, **reference)
        # Costs are at least 0, which an automatic margin would go below.
        ax.set_xlim(left=max(0.0, ax.get_xlim()[0]), auto=None)
        merit = "weighted accuracy" if self.frontier.weighted else "accuracy"
        ax.set(xlabel="mean cost per instance", ylabel=f"{merit} on validation data")
        ax.grid(alpha=0.25)
        ax.legend(loc="lower right", frameon=False)
        self.ax_ = ax
        self.figure_ = ax.figure
        return self

    def _smaller_sizes(self) -> list[int]:
        """List powers of 2, in bytes, for the dotted curves."""
        sizes = [p.bytes for p in (*self.frontier.points, *self.frontier.others)]
        largest = max(p.bytes for p in self.frontier.points)
        powers = [1 << max(largest.bit_length() - 3 * i, 0) for i in (1, 2)]
        return [size for size in powers if min(sizes) <= size < largest]


def _xy(points: Sequence[OperatingPoint]) -> tuple[list[float], list[float]]:
    return [p.cost for p in points], [p.merit for p in points]
