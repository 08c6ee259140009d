"""Functions ``prepare_NAME`` that convert each data set of sources.toml to arrays.

A function takes the contents of the files by name and returns arrays by name: `X` of shape
(n, n_features), `y` of shape (n,), and prices, groups, parts or queries if the set has them.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Files = Mapping[str, bytes]

_HEART_NAMES = (
    "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal".split()  # noqa: SIM905
)
_THYROID_BLOOD_DRAW = 2.10  # dollars, shared by TSH, T3, TT4 and T4U (Turney 1995, appendix A)


def _read_table(
    content: bytes, separator: str | None = None, n_header_lines: int = 0
) -> NDArray[np.str_]:
    lines = content.decode("ascii").split("\n")[n_header_lines:]
    return np.array([line.split(separator) for line in lines if line.strip()])


def _make_heart_prices() -> Arrays:
    """Return Turney's test costs in Canadian dollars (UCI, heart-disease/costs).

    `cost_discount` is the price after another test of the same group.
    """
    prices = [1.0, 1.0, 1.0, 1.0, 7.27, 5.20, 15.50, 102.90, 87.30, 87.30, 87.30, 100.90, 102.90]
    discounted_prices = [1.0, 1.0, 1.0, 1.0, 5.17, 3.10, 15.50, 1.0, 1.0, 1.0, 1.0, 100.90, 1.0]
    return {
        "feature_names": np.array(_HEART_NAMES),
        "cost": np.array(prices),
        "group": np.array([0, 1, 2, 3, 4, 4, 5, 6, 7, 7, 7, 8, 6], np.int32),
        "cost_discount": np.array(discounted_prices),
        "delayed": np.arange(13) >= 4,  # tests whose results come later
    }


def prepare_statlog_heart(files: Files) -> Arrays:
    """Prepare Statlog heart: 13 tests of 270 patients; class 1 is presence of heart disease."""
    cells = _read_table(files["heart.dat"], n_header_lines=1).astype(np.float64)
    return {
        "X": cells[:, :13].astype(np.float32),
        "y": (cells[:, 13] == 2).astype(np.int8),
        **_make_heart_prices(),
    }


def prepare_cleveland_heart(files: Files) -> Arrays:
    """Prepare Cleveland heart disease; class 1 is a severity of 1 to 4, as in Turney's paper."""
    cells = _read_table(files["processed.cleveland.data"], ",")
    values = np.where(cells == "?", "nan", cells).astype(np.float64)
    severity = values[:, 13].astype(np.int8)
    return {
        "X": values[:, :13].astype(np.float32),
        "y": (severity > 0).astype(np.int8),
        "y_num": severity,
        **_make_heart_prices(),
    }


def prepare_thyroid(files: Files) -> Arrays:
    """Prepare ann-thyroid: UCI's training part (0) and test part (1), with Turney's test costs."""
    parts = [
        _read_table(files[name]).astype(np.float64) for name in ("ann-train.data", "ann-test.data")
    ]
    cells = np.concatenate(parts)
    price_table = _read_table(files["ann-thyroid.cost"], ":")
    full_prices = np.append(price_table[:, 1].astype(np.float64), 0.0)
    # features 16 to 20 are TSH, T3, TT4, T4U and FTI; FTI is computed from TT4 and T4U
    full_prices[20] = full_prices[18] + full_prices[19]
    discounted_prices = full_prices.copy()
    discounted_prices[16:20] -= _THYROID_BLOOD_DRAW
    discounted_prices[20] -= 2 * _THYROID_BLOOD_DRAW
    return {
        "X": cells[:, :21].astype(np.float32),
        "y": (cells[:, 21] - 1).astype(np.int8),
        "feature_names": np.array([*price_table[:, 0].tolist(), "FTI"]),
        "cost": full_prices,
        "group": np.minimum(np.arange(21), 16).astype(np.int32),  # 16: the blood draw
        "cost_discount": discounted_prices,
        "part": np.repeat(np.arange(2, dtype=np.int8), [len(part) for part in parts]),
        "fti_parents": np.array([18, 19]),
    }


def prepare_letter(files: Files) -> Arrays:
    """Prepare Letters: 16 features of 20,000 images; classes 0 to 25 are A to Z."""
    cells = _read_table(files["letter-recognition.data"], ",", n_header_lines=1)
    names = (
        "x-box y-box width high onpix x-bar y-bar x2bar "
        "y2bar xybar x2ybr xy2br x-ege xegvy y-ege yegvx"
    )
    return {
        "X": cells[:, 1:].astype(np.uint8),
        "y": np.array([ord(letter) - ord("A") for letter in cells[:, 0]], np.int8),
        "feature_names": np.array(names.split()),
    }


def prepare_occupancy(files: Files) -> Arrays:
    """Prepare room occupancy: five sensors and the clock; parts are the publisher's files."""
    parts = [
        _read_table(files[name].replace(b'"', b"").replace(b"\r", b""), ",", n_header_lines=1)
        for name in ("datatraining.txt", "datatest.txt", "datatest2.txt")
    ]
    cells = np.concatenate(parts)
    times = cells[:, 1].astype("datetime64[s]")
    days = times.astype("datetime64[D]")
    minute_of_day = (times - days).astype("timedelta64[m]").astype(np.float64)
    weekday = (days.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday; Monday is 0
    sensors = cells[:, 2:7].astype(np.float64)
    names = "Temperature Humidity Light CO2 HumidityRatio minute_of_day weekday"
    return {
        "X": np.column_stack([sensors, minute_of_day, weekday]).astype(np.float32),
        "y": cells[:, 7].astype(np.int8),
        "feature_names": np.array(names.split()),
        # one sensor measures temperature and humidity; the clock tells minute and weekday
        "group": np.array([0, 0, 1, 2, 0, 3, 3], np.int32),
        "part": np.repeat(np.arange(3, dtype=np.int8), [len(part) for part in parts]),
    }


def prepare_sonar(files: Files) -> Arrays:
    """Prepare Sonar: 60 energies of 208 echoes; class 1 is a mine."""
    cells = _read_table(files["sonar.all-data"], ",", n_header_lines=3)
    return {
        "X": cells[:, :60].astype(np.float64).astype(np.float32),
        "y": (cells[:, 60] == "M").astype(np.int8),
        "feature_names": np.array([f"band{band:02}" for band in range(60)]),
    }


def _read_svmlight_cells(content: bytes) -> NDArray[np.float64]:
    """Read the values of a dense file of ``label ... index:value`` lines."""
    rows = []
    for line in content.decode("ascii").split("\n"):
        words = line.split("#")[0].split()
        if words:
            rows.append([float(word.split(":")[-1]) for word in words])
    return np.array(rows)


def prepare_mbne_tiny(files: Files) -> Arrays:
    """Prepare MiniBooNE's sample: parts are the authors' training, validation and test rows."""
    parts = [_read_svmlight_cells(files[f"mbne_tiny_{part}"]) for part in ("tr", "tv", "te")]
    cells = np.concatenate(parts)
    return {
        "X": cells[:, 1:].astype(np.float32),
        "y": cells[:, 0].astype(np.int8),
        "feature_names": np.array([f"pid_{number:02}" for number in range(50)]),
        "part": np.repeat(np.arange(3, dtype=np.int8), [len(part) for part in parts]),
    }


def prepare_mq2008(files: Files) -> Arrays:
    """Prepare MQ2008: grades 0 to 2 of documents, their queries, and LETOR's five partitions."""
    parts = [_read_svmlight_cells(files[f"S{number}.txt"]) for number in range(1, 6)]
    cells = np.concatenate(parts)
    fields = ("body", "anchor", "title", "URL", "whole")
    scores = ("TF", "IDF", "TFIDF", "DL", "BM25", "LMIR.ABS", "LMIR.DIR", "LMIR.JM")
    names = [f"{score}({field})" for score in scores for field in fields]
    names += ["PageRank", "Inlinks", "Outlinks", "URL_slashes", "URL_length", "Child_pages"]
    return {
        "X": cells[:, 2:].astype(np.float32),
        "y": cells[:, 0].astype(np.int8),
        "feature_names": np.array(names),
        "qid": cells[:, 1].astype(np.int32),
        "part": np.repeat(np.arange(1, 6, dtype=np.int8), [len(part) for part in parts]),
    }


def prepare_covertype(files: Files) -> Arrays:
    """Prepare Forest: 54 columns of 581,012 cells; classes 0 to 6 are cover types 1 to 7."""
    content = gzip.decompress(files["covtype.data.gz"])
    cells = np.loadtxt(io.BytesIO(content), dtype=np.int16, delimiter=",")
    names = [
        "Elevation",
        "Aspect",
        "Slope",
        "Horizontal_Distance_To_Hydrology",
        "Vertical_Distance_To_Hydrology",
        "Horizontal_Distance_To_Roadways",
        "Hillshade_9am",
        "Hillshade_Noon",
        "Hillshade_3pm",
        "Horizontal_Distance_To_Fire_Points",
        *(f"Wilderness_Area{number}" for number in range(1, 5)),
        *(f"Soil_Type{number}" for number in range(1, 41)),
    ]
    return {
        "X": cells[:, :54],
        "y": (cells[:, 54] - 1).astype(np.int8),
        "feature_names": np.array(names),
        # ten measurements, then the area in 4 columns and the soil type in 40
        "group": np.repeat(np.arange(12, dtype=np.int32), [*[1] * 10, 4, 40]),
    }
