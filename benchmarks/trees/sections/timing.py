"""Section on the CPU time of exact pruning, and the times of other solvers."""

from __future__ import annotations

from benchmarks.harness import Column, column_table, table_lines
from benchmarks.trees.sections.tables import Figures, verdict

#: Aims of exact pruning: CPU seconds and peak memory of the frontier, and how many times faster it
#: is than separate solves, and the cut than HiGHS.
MAX_FRONTIER_SECONDS = 20
MAX_PEAK_GB = 1
MIN_FRONTIER_SPEEDUP = 10
MIN_CUT_SPEEDUP = 100


def write_section(timings: Figures, _parts: Figures) -> list[str]:
    """Write the section of the part `timing`."""
    problem = timings["problem"]
    lines = [
        "## What exact pruning costs",
        "",
        f"Forest has {timings['forest']['trees']} entropy trees of full depth on all features. "
        f"{problem['instances']:,} validation instances make {problem['uses']:,} first uses of "
        f"features in {problem['purchases']:,} purchases; {problem['reduced_uses']:,} uses are "
        "left after the reductions.",
        "",
        *_frontier_table(timings),
        "",
        f"Objectives of the single solves and of the frontier differ by at most "
        f"{timings['single']['largest_difference']:.1e}.",
        "",
        "The next table has times of all solvers for one price, which keeps half of the cost. The "
        "problems are as large as HiGHS can solve within 150 s.",
        "",
        *column_table(SOLVER_COLUMNS, timings["solvers"]),
    ]
    rows_of_highs = [row for row in timings["solvers"] if row["highs"] and "ratio" in row["highs"]]
    if rows_of_highs:
        largest_row = rows_of_highs[-1]
        speedup = largest_row["highs"]["ratio"]
        lines += [
            "",
            f"On the largest problem that HiGHS solved ({largest_row['trees']} trees, "
            f"{largest_row['instances']:,} instances), the cut is {speedup:.0f} times faster (aim: "
            f"{MIN_CUT_SPEEDUP}, {verdict(speedup >= MIN_CUT_SPEEDUP)}).",
        ]
    return [
        *lines,
        "",
        "The paper (NIPS 2016) says that its network flow by CPLEX takes minutes and that LP "
        "solvers take hours. It has no figures to compare with.",
    ]


def _frontier_table(timings: Figures) -> list[str]:
    """Write the table of the frontier; each row has a title, a figure, its aim and the verdict."""
    frontier, single = timings["frontier"], timings["single"]
    rows = [
        (
            "the complete frontier, CPU s",
            f"{frontier['cpu']:.2f}",
            f"{MAX_FRONTIER_SECONDS}",
            verdict(frontier["cpu"] <= MAX_FRONTIER_SECONDS),
        ),
        (
            "its peak memory, GB",
            f"{frontier['peak_gb']:.2f}",
            f"{MAX_PEAK_GB}",
            verdict(frontier["peak_gb"] <= MAX_PEAK_GB),
        ),
        ("held before it (data, libraries, forest), GB", f"{frontier['before_gb']:.2f}", "", ""),
        ("its breakpoints", f"{frontier['breakpoints']}", "", ""),
        ("setting the problem up, CPU s", f"{timings['problem']['build_cpu']:.2f}", "", ""),
        (
            f"{single['solves']} separate solves on a geometric grid, CPU s",
            f"{single['cpu']:.1f}, {single['ratio']:.1f} times the frontier",
            f"{MIN_FRONTIER_SPEEDUP} times",
            verdict(single["ratio"] >= MIN_FRONTIER_SPEEDUP),
        ),
    ]
    return table_lines(("", "", "aim", ""), rows)


def _solver_time(solution: Figures | None) -> str:
    if solution is None:
        return "not tried"
    if "stopped" in solution:
        return "stopped at the limit"
    return f"{solution['cpu']:.2f} ({solution['ratio']:.0f}x)"


#: Table of all solvers; a row is one problem with one price.
SOLVER_COLUMNS = (
    Column("trees", lambda row: f"{row['trees']}"),
    Column("instances", lambda row: f"{row['instances']:,}"),
    Column("first uses", lambda row: f"{row['uses']:,}"),
    Column("min cut", lambda row: f"{row['cut_cpu']:.4f}"),
    Column("HiGHS", lambda row: _solver_time(row["highs"])),
    Column("Dantzig-Wolfe", lambda row: _solver_time(row["dantzig_wolfe"])),
    Column("primal-dual", lambda row: _solver_time(row["primal_dual"])),
    Column("gap", lambda row: f"{row['primal_dual']['gap']:.1e}" if row["primal_dual"] else ""),
)
