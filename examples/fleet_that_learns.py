"""Write rows of pumps before and after a change of sensors, and their true labels.

python fleet_that_learns.py rows     # writes train.csv and week.csv
python fleet_that_learns.py label    # fills in the column `label` of to-label.csv
"""

import csv
import sys

import numpy as np

NAMES = ("vibration", "current", "flow", "pressure", "heat", "hum")


def pumps(n: int, seed: int, *, new_sensor: bool) -> list[list[str]]:
    """Draw rows of features and labels; a new sensor gives other values of vibration and flow."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, len(NAMES)))
    wear = x[:, 0] + 0.8 * x[:, 2] * x[:, 1] + 0.3 * x[:, 3]
    label = np.select([wear > 1.0, wear < -1.0], ["worn", "blocked"], "fine")
    if new_sensor:
        x[:, 0] = -0.5 * x[:, 0] - 1.0
        x[:, 2] = -x[:, 2]
    cells = [[f"{np.float32(value):.9g}" for value in row] for row in x]
    return [[*row, name] for row, name in zip(cells, label.tolist(), strict=True)]


def write(path: str, header: list[str], rows: list[list[str]]) -> None:
    """Write a table as CSV."""
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if sys.argv[1] == "rows":
    write("train.csv", [*NAMES, "label"], pumps(600, seed=0, new_sensor=False))
    write("week.csv", [*NAMES, "label"], pumps(3000, seed=1, new_sensor=True))
else:
    with open("week.csv") as week, open("to-label.csv") as chosen:
        truth = {tuple(row[n] for n in NAMES): row["label"] for row in csv.DictReader(week)}
        rows = list(csv.DictReader(chosen))
    labels = [[row["id"], truth[tuple(row[n] for n in NAMES)]] for row in rows]
    write("to-label.csv", ["id", "label"], labels)
