"""Write rows of pumps before and after a change of sensors, and their true labels.

python fleet_that_learns.py rows     # writes train.csv and week.csv
python fleet_that_learns.py label    # fills in the column `label` of to-label.csv
"""

import csv
import sys

import numpy as np

NAMES = ("vibration", "current", "flow", "pressure", "heat", "hum")


def draw_pumps(n_rows: int, seed: int, *, has_new_sensors: bool) -> list[list[str]]:
    """Draw rows of features and a label; new sensors give other values of vibration and flow."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_rows, len(NAMES)))
    # The product keeps a linear model from learning the wear completely.
    wear = features[:, 0] + 0.8 * features[:, 2] * features[:, 1] + 0.3 * features[:, 3]
    labels = np.select([wear > 1.0, wear < -1.0], ["worn", "blocked"], "fine")
    if has_new_sensors:
        features[:, 0] = -features[:, 0] - 1.0
        features[:, 2] = -features[:, 2]
    cells = [[f"{np.float32(value):.9g}" for value in row] for row in features]
    return [[*row, label] for row, label in zip(cells, labels.tolist(), strict=True)]


def write_csv(path: str, header: list[str], rows: list[list[str]]) -> None:
    """Write a table as CSV."""
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if sys.argv[1] == "rows":
    write_csv("train.csv", [*NAMES, "label"], draw_pumps(400, seed=0, has_new_sensors=False))
    write_csv("week.csv", [*NAMES, "label"], draw_pumps(3000, seed=1, has_new_sensors=True))
else:
    with open("week.csv") as week_file, open("to-label.csv") as label_file:
        true_labels = {
            tuple(row[name] for name in NAMES): row["label"] for row in csv.DictReader(week_file)
        }
        rows = list(csv.DictReader(label_file))
    labels = [[row["id"], true_labels[tuple(row[name] for name in NAMES)]] for row in rows]
    write_csv("to-label.csv", ["id", "label"], labels)
