"""Markdown pages and plots of the comparison, written from the figures in adapt/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS = "staged"

_BYTE_RULES = {
    "at most 1 MB": "within_1_1024_kb",
    "at most 64 KB": "within_1_64_kb",
    "at most 8 KB": "within_1_8_kb",
}
"""Maps a bound of bytes to its rule in :mod:`.summary`."""

NOT_YET = "Not here: the full MiniBooNE, Yahoo, HEPMASS and Scene15, which are not to be had."


def markdown(problems: Mapping[str, Any]) -> str:
    """Write the page with an overview and one section per problem."""
    lines = [
        "# Accuracy against cost",
        "",
        "Made by `make bench-adapt`; the figures are in `adapt/`. Validation picks every "
        "point, test is only reported; means over seeds, ± standard error. **Top accuracy**: the "
        "highest of any method on test rows, and the method that is highest on validation rows "
        "(of those without a bound of bytes). "
        "**Cut**: share of the price of all features that is saved within 1 % absolute of that "
        "method on validation rows. **Loss**: what that choice really loses on test rows against "
        "the top accuracy, in points; above 1 is an overshoot. A method without a point good "
        "enough on validation falls back to the top method at the full price: cut 0. Bold: "
        "the highest cut. With at most so many bytes, all models of a device as tables of C99, "
        "`staged` is fitted anew.",
        "",
        "| problem | seeds | top accuracy | target | " + " | ".join(_columns(problems)) + " |",
        "| --- " * (4 + len(_columns(problems))) + "|",
    ]
    for name, figures in problems.items():
        lines.append(_overview(name, figures, _columns(problems)))
    lines += ["", NOT_YET]
    for name, figures in problems.items():
        lines += ["", *_section(name, figures)]
    return "\n".join(lines) + "\n"


def bytes_markdown(problems: Mapping[str, Any]) -> str:
    """Write the table of savings within bounds of bytes, for this project and the best peer."""
    lines = [
        "# Accuracy against cost within few bytes",
        "",
        "Made by `make bench-adapt`. Share of the full price saved on test rows / accuracy lost in "
        "points, at the point that validation chooses within 1 % of the best method; `staged` is "
        "fitted for each size, and all models are counted as C99 tables.",
        "",
    ]
    rooms = ["within_1", *_BYTE_RULES.values()]
    header = ["problem", "seeds", "any size", *(f"{room}" for room in _BYTE_RULES)]
    header += [f"best other, {room}" for room in list(_BYTE_RULES)[1:]]
    lines += [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    for name, figures in problems.items():
        ours = figures["methods"].get(OURS, {})
        n_seeds = str(len(figures["top_accuracy_of_seeds"]))
        cells = [_pair(ours[room]) if room in ours else "" for room in rooms]
        best_peers = [_best_peer(figures, room) for room in rooms[2:]]
        lines.append(f"| {' | '.join([name, n_seeds, *cells, *best_peers])} |")
    return "\n".join([*lines, ""])


def _best_peer(results: Mapping[str, Any], room: str) -> str:
    """Cut and loss of the peer that saves most within a bound of bytes."""
    figures = {
        method: method_figures[room]
        for method, method_figures in results["methods"].items()
        if not method.startswith((OURS, "f0"))
        and room in method_figures
        and method_figures[room]["reached"]["mean"] > 0
    }
    if not figures:
        return "none"
    method = max(figures, key=lambda m: figures[m]["cut"]["mean"])
    return f"{_pair(figures[method])} ({method})"


def _columns(problems: Mapping[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for figures in problems.values():
        names |= dict.fromkeys(m for m in figures["methods"] if m != "f0")
    return list(names)


def _overview(name: str, results: Mapping[str, Any], columns: list[str]) -> str:
    methods = results["methods"]
    highest = max(m["within_1"]["cut"]["mean"] for m in methods.values())
    cells = []
    for column in columns:
        if column not in methods:
            cells.append("")
            continue
        rule = methods[column]["within_1"]
        cut = f"{100 * rule['cut']['mean']:.0f}"
        cut = f"**{cut}**" if rule["cut"]["mean"] >= highest - 5e-3 else cut
        cells.append(f"{cut} / {100 * rule['loss']['mean']:.1f}")
    target = "" if results["target"] is None else f"{100 * results['target']:.0f}"
    unit = "" if _metric(results) == "accuracy" else f"{_metric(results)}, "
    seeds = max(len(m["seeds"]) for m in methods.values())
    top = f"{100 * results['top_accuracy']:.2f} ({unit}validation: {results['top_method']})"
    return f"| [{name}](#{name}) | {seeds} | {top} | {target} | " + " | ".join(cells) + " |"


def _section(name: str, results: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## {name}",
        "",
        f"{results['title']}: {results['note']}. Full price {results['full_price']:g}.",
        "",
        f"![accuracy against cost](adapt/{name}.svg)",
        "",
        f"| method | best {_metric(results)} | cut / loss | paper's accounting | with 0.2 slack | "
        "own choice | " + " | ".join(_BYTE_RULES) + " | offloaded | model KB | fit CPU s |",
        "| --- " * (9 + len(_BYTE_RULES)) + "|",
    ]
    for method, figures in results["methods"].items():
        rule = figures["within_1"]
        unreached = "" if rule["reached"]["mean"] > 0 else " (not reached)"
        row = [
            method,
            _figure(figures["best_accuracy"], 100, 2),
            f"{_figure(rule['cut'], 100, 1)} / {_figure(rule['loss'], 100, 2)}{unreached}",
            _figure(rule["cut_paper"], 100, 1),
            _pair(figures["within_1_slack"]),
            _pair(figures["own_choice"]) if "own_choice" in figures else "",
            *(_pair(figures[rule]) if rule in figures else "" for rule in _BYTE_RULES.values()),
            f"{100 * rule['offload_rate']['mean']:.0f} %",
            f"{rule['nbytes']['mean'] / 1024:.0f}",
            f"{figures['fit_seconds']['mean']:.0f}",
        ]
        lines.append("| " + " | ".join(row) + " |")
    if "against" in results:
        lines += ["", *_against(results)]
    if all(_against_key(rule) in results for rule in _BYTE_RULES.values()):
        lines += ["", *_against_within_bytes(results)]
    return lines


def _against(results: Mapping[str, Any]) -> list[str]:
    budgets = results["budgets"]
    lines = [
        f"`{OURS}` against each at {len(budgets)} budgets, difference of test {_metric(results)} "
        "in points (below 0: it loses). Wins-ties-losses: significant after Holm's correction, "
        "and by means further apart than 0.1 points.",
        "",
        "| against | " + " | ".join(f"{b:.3g}" for b in budgets) + " | significant | plain |",
        "| --- " * (len(budgets) + 3) + "|",
    ]
    for peer, figures in results["against"].items():
        gaps = " | ".join(f"{100 * gap:+.2f}" for gap in figures["difference"])
        counts = " | ".join(
            "{wins}-{ties}-{losses}".format(**figures[kind]) for kind in ("significant", "plain")
        )
        lines.append(f"| {peer} | {gaps} | {counts} |")
    return lines


def _against_within_bytes(results: Mapping[str, Any]) -> list[str]:
    lines = [
        f"With so much room on the device ({OURS} fitted for it, of the others what is small "
        "enough), at the same budgets: wins-ties-losses, significant and plain, and the worst "
        "difference in points.",
        "",
        "| against | " + " | ".join(_BYTE_RULES) + " |",
        "| --- " * (1 + len(_BYTE_RULES)) + "|",
    ]
    for peer in results["against"]:
        cells = []
        for rule in _BYTE_RULES.values():
            figures = results[_against_key(rule)][peer]
            significant, plain = (
                "{wins}-{ties}-{losses}".format(**figures[kind])
                for kind in ("significant", "plain")
            )
            cells.append(f"{significant}, {plain}, {100 * min(figures['difference']):+.2f}")
        lines.append(f"| {peer} | " + " | ".join(cells) + " |")
    return lines


def _against_key(rule: str) -> str:
    return rule.replace("within_1", "against")


def _metric(results: Mapping[str, Any]) -> str:
    """Name of the metric; figures of older runs have only accuracy."""
    return str(results.get("metric", "accuracy"))


def _figure(figure: Mapping[str, float | None], scale: float, digits: int) -> str:
    mean, error = figure["mean"], figure["error"]
    assert mean is not None
    text = f"{scale * mean:.{digits}f}"
    return text if error is None else f"{text} ± {scale * error:.{digits}f}"


def _pair(rule: Mapping[str, Any]) -> str:
    return f"{100 * rule['cut']['mean']:.1f} / {100 * rule['loss']['mean']:.2f}"


def plot(name: str, results: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy against cost on test rows as an SVG with one line per method."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(6.8, 3.6), layout="constrained")
        ax = figure.subplots()
        shades = [mpl.colormaps["tab20"](k) for k in range(20)]
        ax.set_prop_cycle(color=shades[::2] + shades[1::2])  # dark colours first
        floor = 1.0
        for method, figures in results["methods"].items():
            # a logarithmic axis cannot show a cost of 0
            rows = [row for row in figures["at_budgets"] if row["cost"]["mean"] > 0]
            x = [row["cost"]["mean"] / results["full_price"] for row in rows]
            y = [row["accuracy"]["mean"] for row in rows]
            error = [row["accuracy"]["error"] or 0.0 for row in rows]
            if method == "f0":
                ax.axhline(y[-1], color="grey", lw=0.8, ls=":", label="f0, at the full price")
                continue
            floor = min([floor, *y])
            width = 2.0 if method == OURS else 1.0
            # dashed lines for peers, because there are more methods than dark colours
            style = "-" if method.startswith((OURS, "adapt")) else "--"
            ax.errorbar(x, y, error, marker=".", ms=4, lw=width, ls=style, capsize=2, label=method)
        top = results["top_accuracy"]
        ax.axhspan(top - 0.01, top, color="green", alpha=0.08, lw=0)
        ax.set(
            xscale="log",
            xlabel="mean cost per instance, share of the full price",
            ylabel=f"{_metric(results)} on test rows",
            title=results["title"],
            ylim=(max(floor - 0.01, top - 0.3), top + 0.01),
        )
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(alpha=0.25)
        figure.legend(frameon=False, fontsize=7, loc="outside right upper")
        figure.savefig(path, metadata={"Date": None})
