"""Markdown pages and plots of the comparison, written from the figures in adapt/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import table_lines

OURS = "staged"

BYTE_RULES = {
    "at most 1 MB": "within_1_1024_kb",
    "at most 64 KB": "within_1_64_kb",
    "at most 8 KB": "within_1_8_kb",
}
"""Maps a bound of bytes to its rule in :mod:`.summary`."""


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
        "| problem | seeds | top accuracy | target | " + " | ".join(_method_names(problems)) + " |",
        "| --- " * (4 + len(_method_names(problems))) + "|",
    ]
    for name, figures in problems.items():
        lines.append(_overview(name, figures, _method_names(problems)))
    lines += [
        "",
        "Not here: the full MiniBooNE, Yahoo, HEPMASS and Scene15, which are not to be had.",
    ]
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
    rules = ["within_1", *BYTE_RULES.values()]
    header = ["problem", "seeds", "any size", *BYTE_RULES]
    header += [f"best other, {bound}" for bound in list(BYTE_RULES)[1:]]
    rows = []
    for name, figures in problems.items():
        ours = figures["methods"].get(OURS, {})
        n_seeds = str(len(figures["top_accuracy_of_seeds"]))
        cells = [_cut_and_loss(ours[rule]) if rule in ours else "" for rule in rules]
        best_peers = [_best_peer(figures, rule) for rule in rules[2:]]
        rows.append([name, n_seeds, *cells, *best_peers])
    return "\n".join([*lines, *table_lines(header, rows), ""])


def _best_peer(results: Mapping[str, Any], rule: str) -> str:
    """Cut and loss of the peer that saves most within a bound of bytes."""
    figures = {
        method: method_figures[rule]
        for method, method_figures in results["methods"].items()
        if not method.startswith((OURS, "f0"))
        and rule in method_figures
        and method_figures[rule]["reached"]["mean"] > 0
    }
    if not figures:
        return "none"
    method = max(figures, key=lambda m: figures[m]["cut"]["mean"])
    return f"{_cut_and_loss(figures[method])} ({method})"


def _method_names(problems: Mapping[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for figures in problems.values():
        names |= dict.fromkeys(m for m in figures["methods"] if m != "f0")
    return list(names)


def _overview(name: str, results: Mapping[str, Any], names: list[str]) -> str:
    methods = results["methods"]
    highest_cut = max(m["within_1"]["cut"]["mean"] for m in methods.values())
    cells = []
    for method in names:
        if method not in methods:
            cells.append("")
            continue
        rule = methods[method]["within_1"]
        cut = f"{100 * rule['cut']['mean']:.0f}"
        if rule["cut"]["mean"] >= highest_cut - 5e-3:
            cut = f"**{cut}**"
        cells.append(f"{cut} / {100 * rule['loss']['mean']:.1f}")
    target = "" if results["target"] is None else f"{100 * results['target']:.0f}"
    unit = "" if _metric(results) == "accuracy" else f"{_metric(results)}, "
    n_seeds = max(len(m["seeds"]) for m in methods.values())
    top = f"{100 * results['top_accuracy']:.2f} ({unit}validation: {results['top_method']})"
    return f"| [{name}](#{name}) | {n_seeds} | {top} | {target} | " + " | ".join(cells) + " |"


def _section(name: str, results: Mapping[str, Any]) -> list[str]:
    lines = [
        f"## {name}",
        "",
        f"{results['title']}: {results['note']}. Full price {results['full_price']:g}.",
        "",
        f"![accuracy against cost](adapt/{name}.svg)",
        "",
        f"| method | best {_metric(results)} | cut / loss | paper's accounting | with 0.2 slack | "
        "own choice | " + " | ".join(BYTE_RULES) + " | offloaded | model KB | fit CPU s |",
        "| --- " * (9 + len(BYTE_RULES)) + "|",
    ]
    byte_rules = BYTE_RULES.values()
    for method, figures in results["methods"].items():
        rule = figures["within_1"]
        note = "" if rule["reached"]["mean"] > 0 else " (not reached)"
        row = [
            method,
            _mean_and_error(figures["best_accuracy"], 100, 2),
            f"{_mean_and_error(rule['cut'], 100, 1)} / "
            f"{_mean_and_error(rule['loss'], 100, 2)}{note}",
            _mean_and_error(rule["cut_paper"], 100, 1),
            _cut_and_loss(figures["within_1_slack"]),
            _cut_and_loss(figures["own_choice"]) if "own_choice" in figures else "",
            *(_cut_and_loss(figures[key]) if key in figures else "" for key in byte_rules),
            f"{100 * rule['offload_rate']['mean']:.0f} %",
            f"{rule['nbytes']['mean'] / 1024:.0f}",
            f"{figures['fit_seconds']['mean']:.0f}",
        ]
        lines.append("| " + " | ".join(row) + " |")
    if "against" in results:
        lines += ["", *_against(results)]
    if all(_against_key(rule) in results for rule in byte_rules):
        lines += ["", *_against_within_bytes(results)]
    return lines


def _against(results: Mapping[str, Any]) -> list[str]:
    budgets = results["budgets"]
    rows = []
    for peer, figures in results["against"].items():
        gaps = (f"{100 * gap:+.2f}" for gap in figures["difference"])
        counts = (
            "{wins}-{ties}-{losses}".format(**figures[kind]) for kind in ("significant", "plain")
        )
        rows.append([peer, *gaps, *counts])
    header = ["against", *(f"{budget:.3g}" for budget in budgets), "significant", "plain"]
    return [
        f"`{OURS}` against each at {len(budgets)} budgets, difference of test {_metric(results)} "
        "in points (below 0: it loses). Wins-ties-losses: significant after Holm's correction, "
        "and by means further apart than 0.1 points.",
        "",
        *table_lines(header, rows),
    ]


def _against_within_bytes(results: Mapping[str, Any]) -> list[str]:
    lines = [
        f"With so much room on the device ({OURS} fitted for it, of the others what is small "
        "enough), at the same budgets: wins-ties-losses, significant and plain, and the worst "
        "difference in points.",
        "",
        "| against | " + " | ".join(BYTE_RULES) + " |",
        "| --- " * (1 + len(BYTE_RULES)) + "|",
    ]
    for peer in results["against"]:
        cells = []
        for rule in BYTE_RULES.values():
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


def _mean_and_error(mean_and_error: Mapping[str, float | None], scale: float, digits: int) -> str:
    mean, error = mean_and_error["mean"], mean_and_error["error"]
    assert mean is not None
    mean_text = f"{scale * mean:.{digits}f}"
    return mean_text if error is None else f"{mean_text} ± {scale * error:.{digits}f}"


def _cut_and_loss(rule: Mapping[str, Any]) -> str:
    return f"{100 * rule['cut']['mean']:.1f} / {100 * rule['loss']['mean']:.2f}"


def plot(name: str, results: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy against cost on test rows as an SVG with one line per method."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(6.8, 3.6), layout="constrained")
        ax = figure.subplots()
        colours = [mpl.colormaps["tab20"](k) for k in range(20)]
        ax.set_prop_cycle(color=colours[::2] + colours[1::2])  # dark colours first
        lowest_accuracy = 1.0
        for method, figures in results["methods"].items():
            # a logarithmic axis cannot show a cost of 0
            points = [p for p in figures["at_budgets"] if p["cost"]["mean"] > 0]
            x = [p["cost"]["mean"] / results["full_price"] for p in points]
            y = [p["accuracy"]["mean"] for p in points]
            error = [p["accuracy"]["error"] or 0.0 for p in points]
            if method == "f0":
                ax.axhline(y[-1], color="grey", lw=0.8, ls=":", label="f0, at the full price")
                continue
            lowest_accuracy = min([lowest_accuracy, *y])
            width = 2.0 if method == OURS else 1.0
            # dashed lines for peers, because there are more methods than dark colours
            style = "-" if method.startswith((OURS, "adapt")) else "--"
            ax.errorbar(x, y, error, marker=".", ms=4, lw=width, ls=style, capsize=2, label=method)
        top_accuracy = results["top_accuracy"]
        ax.axhspan(top_accuracy - 0.01, top_accuracy, color="green", alpha=0.08, lw=0)
        ax.set(
            xscale="log",
            xlabel="mean cost per instance, share of the full price",
            ylabel=f"{_metric(results)} on test rows",
            title=results["title"],
            ylim=(max(lowest_accuracy - 0.01, top_accuracy - 0.3), top_accuracy + 0.01),
        )
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(alpha=0.25)
        figure.legend(frameon=False, fontsize=7, loc="outside right upper")
        figure.savefig(path, metadata={"Date": None})
