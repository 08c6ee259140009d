"""Write a table of machines with text, dates, empty cells, error words and 5 % faults.

    python make_machine_log.py [ROWS] > machine_log.csv

Wear affects vibration and the age of the oil, and a fault also heat and current. The bearings of
one supplier are hot, machines are cooler at night, and some sensors fail. The rows are always the
same.
"""

import csv
import sys
from datetime import datetime, timedelta

import numpy as np

HEADER = (
    "serial", "timestamp", "machine", "supplier", "door open", "temperature", "pressure",
    "current", "oil_age_days", "vibration_x", "vibration_y", "vibration_z", "note", "label",
)  # fmt: skip
SUPPLIERS = np.array(["ACME", "Bölt & Söhne", "東海", "Cog, Ltd."])
#: Share of empty cells in each column that has some.
EMPTY_SHARES = {"supplier": 0.03, "temperature": 0.02, "oil_age_days": 0.15}
NOTES = ("checked at {}, all well", "oil topped up, {} ml", '"loud", says operator {}')


def draw_rows(n_rows, rng):
    """Yield `n_rows` rows."""
    # All figures are invented. The beta distribution has few machines with much damage.
    damage = rng.beta(1.2, 6.0, n_rows)  # 0 is new, 1 is broken
    supplier = rng.integers(0, len(SUPPLIERS), n_rows)
    start = datetime(2025, 1, 6, 5, 30)
    times = [start + timedelta(minutes=37 * i + int(rng.integers(0, 30))) for i in range(n_rows)]
    is_night = np.array([time.hour < 6 or time.hour >= 22 for time in times])
    temperature = 55 + 30 * damage + 6 * (supplier == 2) - 5 * is_night + rng.normal(0, 2.5, n_rows)
    pressure = 6.0 - 1.5 * damage + rng.normal(0, 0.25, n_rows)
    current = 11 + 7 * damage**2 + rng.normal(0, 0.6, n_rows)
    oil_age = rng.gamma(4, 20, n_rows) * (0.5 + damage)
    vibration = 0.4 + (1.6 * damage + 0.002 * oil_age)[:, None] + rng.normal(0, 0.12, (n_rows, 3))
    strain = damage + 0.12 * (supplier == 2) + 0.0012 * oil_age + rng.normal(0, 0.02, n_rows)
    labels = np.where(strain > 0.56, "fault", np.where(strain > 0.4, "wear", "fine"))
    for i in range(n_rows):
        cells = [
            f"SN-{i:06}",
            times[i].isoformat(" ", "minutes"),
            f"M{int(rng.integers(1, 6))}",
            str(SUPPLIERS[supplier[i]]),
            str(rng.choice(["no", "no", "no", "yes"])),
            f"{temperature[i]:.1f}",
            f"{pressure[i]:.2f}",
            f"{current[i]:.2f}",
            f"{oil_age[i]:.0f}",
            *(f"{axis_value:.3f}" for axis_value in vibration[i]),
            NOTES[int(rng.integers(0, 3))].format(int(rng.integers(100, 9999))),
            str(labels[i]),
        ]
        if rng.random() < 0.04:  # a failed sensor
            cells[HEADER.index("pressure")] = "ERR"
        for column, empty_share in EMPTY_SHARES.items():
            if rng.random() < empty_share:
                cells[HEADER.index(column)] = ""
        yield cells


def main():
    """Write the table to standard output."""
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(draw_rows(n_rows, np.random.default_rng(7)))


if __name__ == "__main__":
    main()
