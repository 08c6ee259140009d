"""Print metrics at the stop action as JSON, computed by the functions of AFABench.

    python -m benchmarks.afabench.metrics MERGED_BUILTIN.parquet MERGED_EXTERNAL.parquet

The script runs in the environment and folder of AFABench.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def main(builtin_path: str, external_path: str) -> None:
    """Print one record per method, set, instance, budget and classifier."""
    import polars as pl

    sys.path.insert(0, "scripts/plotting")
    import plot_eval_perf as afabench_plots

    records = []
    for classifier, path in (("builtin", builtin_path), ("external", external_path)):
        frame = afabench_plots.read_parquet(Path(path))
        frame = afabench_plots.assert_only_one_soft_budget_param_type(frame)
        stop_rows = frame.filter(
            (pl.col("action_performed") == 0) & pl.col("predicted_class").is_not_null()
        )
        if stop_rows.is_empty():
            continue
        for row in afabench_plots.get_metrics_at_stop_action(stop_rows).iter_rows(named=True):
            has_f_score = row["dataset"] in afabench_plots.DATASETS_WITH_F_SCORE
            records.append(record_of_row(row, classifier, has_f_score=has_f_score))
    print(json.dumps(records))


def record_of_row(row: Mapping[str, Any], classifier: str, *, has_f_score: bool) -> dict[str, Any]:
    """Get the record of a row of AFABench's metrics at the stop action."""
    return {
        "method": row["afa_method"],
        "set": row["dataset"],
        "instance": row["train_seed"],
        "hard_budget": row["eval_hard_budget"],
        "soft_budget": row["soft_budget_param"],
        "classifier": classifier,
        "metric": row["f_score" if has_f_score else "accuracy"],
        "metric_name": "macro F1" if has_f_score else "accuracy",
        "cost": row["avg_accumulated_cost"],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
