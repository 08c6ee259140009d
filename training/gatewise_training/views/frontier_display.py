"""Plot of accuracy against cost: operating points and their hull."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatewise.operating_point import OperatingPoint


class FrontierDisplay:
    """Plot of accuracy against cost for the :class:`.Frontier` of a system.

    Parameters
    ----------
    frontier : Frontier
    name : str, default ""
        Label of the system.

    Examples
    --------
    ``FrontierDisplay.from_estimator(system, name="staged").figure_.savefig("f.png")`` draws a plot;
    pass ``ax=display.ax_`` to add another system to it.
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
            Label of the system; the name of its class by default.
        ax : matplotlib Axes, optional
            Axes of the plot; a new figure by default.

        Returns
        -------
        FrontierDisplay
            With `ax_` and `figure_`.
        """
        display = cls(system.frontier_, name=type(system).__name__ if name is None else name)
        display.plot(ax=ax, active=system.operating_point_)
        if not hasattr(system, "classes_"):  # a regressor or ranker
            display.ax_.set_ylabel("score on validation data")
        return display

    def plot(self, *, ax: Any = None, active: OperatingPoint | None = None) -> FrontierDisplay:
        """Draw all points, their hull, and a ring around the active point.

        A dashed line marks the accuracy from which losses are measured.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes of the plot; a new figure by default.
        active : OperatingPoint, optional
            Operating point that gets the ring.

        Returns
        -------
        FrontierDisplay
            Itself, with `ax_` and `figure_`.
        """
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(6.4, 4.2), layout="constrained").subplots()
        points, hull = self.frontier.points, self.frontier.hull().points
        curve_line = ax.plot(*_list_coordinates(hull), marker=".", label=self.name)[0]
        ax.plot(*_list_coordinates(points), ".", alpha=0.3, color=curve_line.get_color())
        if active is not None:
            ring_style = {"fillstyle": "none", "markersize": 11, "markeredgewidth": 1.8}
            label = f"{self.name}, active point".removeprefix(", ")
            ax.plot(
                [active.cost],
                [active.effective_accuracy],
                "o",
                color=curve_line.get_color(),
                label=label,
                **ring_style,
            )
        reference_names = ("high-cost model", "reference")
        n_references = sum(str(artist.get_label()).endswith(reference_names) for artist in ax.lines)
        # offset dashes, so that equal references of several systems stay visible
        dashes = (6.0 * n_references, (6.0, 6.0))
        reference_style = {"color": curve_line.get_color(), "linestyle": dashes, "linewidth": 1.0}
        has_cloud = any(point.offload_rate for point in points)
        reference_name = reference_names[0] if has_cloud else reference_names[1]
        label = f"{self.name}, {reference_name}".removeprefix(", ")
        ax.axhline(self.frontier.reference_effective_accuracy, label=label, **reference_style)
        # costs are not negative, but the automatic margin would extend below 0
        ax.set_xlim(left=max(0.0, ax.get_xlim()[0]), auto=None)
        accuracy_name = "weighted accuracy" if self.frontier.is_weighted else points[0].measured
        ax.set(xlabel="mean cost per instance", ylabel=f"{accuracy_name} on validation data")
        ax.grid(alpha=0.25)
        ax.legend(loc="lower right", frameon=False)
        self.ax_ = ax
        self.figure_ = ax.figure
        return self


def _list_coordinates(points: Sequence[OperatingPoint]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.effective_accuracy for point in points]
