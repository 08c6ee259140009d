"""Readers for the cells of raw rows, which training and devices share.

A row comes from a CSV file, a JSON line or a sensor. A cell is a text, a number, a boolean, a date,
or missing. The readers ignore spaces around a text, and raise InputError if the cell is of another
kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

#: Texts that mean a missing cell, in lower case, including the ones that pandas recognises.
MISSING_WORDS: Final = frozenset(
    {"", "?", "na", "n/a", "nan", "-nan", "null", "none", "nat", "<na>", "#n/a", "#n/a n/a", "#na"}
    | {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
)

#: Formats of a time in addition to strptime formats: ISO 8601, and seconds since 1970.
ISO: Final = "iso"
UNIX: Final = "unix"

#: Features of a time. ``weekday`` is 0 on Monday, and ``days`` counts from 1970 in UTC.
TIME_PARTS: Final = ("year", "month", "day", "weekday", "hour", "minute", "second", "days")

_TRUE_WORDS: Final = frozenset({"true", "yes", "on", "t", "y", "1", "1.0"})
_FALSE_WORDS: Final = frozenset({"false", "no", "off", "f", "n", "0", "0.0"})
#: Whole numbers as pandas writes them in a column of floats.
_WHOLE_FLOAT: Final = re.compile(r"-?(0|[1-9]\d*)\.0")
#: Numbers as Python writes them with an exponent.
_POWER_OF_TEN: Final = re.compile(r"-?\d(\.\d+)?e[+-]\d{2,3}", re.ASCII)
_ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
_EPOCH: Final = datetime(1970, 1, 1)
_DAY: Final = timedelta(days=1)
#: strptime directives that do not depend on the locale.
_DIRECTIVES: Final = frozenset("YymdHMSfjz%")


def is_missing(cell: object, missing_words: Set[str] = frozenset()) -> bool:
    """Return whether a cell is None, NaN, NaT or a text that stands for a missing value.

    The sets are :data:`MISSING_WORDS` and `missing_words`, both in lower case.

    >>> is_missing(" NaN "), is_missing(None), is_missing("0"), is_missing("ERR", {"err"})
    (True, True, False, True)
    """
    if isinstance(cell, str):
        text = cell.strip().lower()
        return text in MISSING_WORDS or text in missing_words
    if cell is None:
        return True
    try:
        return bool(cell != cell)  # NaN and NaT
    except TypeError:  # pandas.NA is neither equal nor unequal to anything
        return True
    except ValueError:  # an array
        return False


def read_number(cell: object) -> float:
    """Read a number.

    >>> read_number(" 1e3 "), read_number(7)
    (1000.0, 7.0)
    """
    python_value = _convert_to_python(cell)
    try:
        # float() would also take Python's 1_000, and true as 1
        if not isinstance(python_value, bool | date) and not (
            isinstance(python_value, str) and "_" in python_value
        ):
            return float(python_value)
    except OverflowError:
        return float("inf") if python_value > 0 else float("-inf")
    except (ValueError, TypeError):
        pass
    raise _make_cell_error(cell, "a number")


def read_boolean(cell: object) -> float:
    """Read a boolean such as ``true``, ``yes``, ``on`` or ``1`` as 1.0 or 0.0.

    >>> read_boolean("Yes"), read_boolean(False)
    (1.0, 0.0)
    """
    text = str(_convert_to_python(cell)).strip().lower()
    if text in _TRUE_WORDS:
        return 1.0
    if text in _FALSE_WORDS:
        return 0.0
    raise _make_cell_error(cell, "true or false")


def read_category(cell: object) -> str:
    """Read the canonical name of a category.

    A number, boolean or time has the same name as its text. A CSV file contains ``3.0`` for the
    number 3 of a float column, ``True`` for a boolean, and a date for midnight.

    >>> read_category(" Bolt & Sons"), read_category(3.0), read_category("3.0")
    ('Bolt & Sons', '3', '3')
    >>> read_category(True), read_category("True"), read_category("3.10")
    ('true', 'true', '3.10')
    >>> read_category("2025-03-01 00:00:00"), read_category(datetime(2025, 3, 1, 8, 30))
    ('2025-03-01', '2025-03-01 08:30:00')
    """
    cell = _convert_to_python(cell)
    if isinstance(cell, datetime | date):
        return _name_time(cell)
    if not isinstance(cell, str | bool | int | float | Decimal | time):
        raise _make_cell_error(cell, "a category")
    text = str(cell).strip()
    if _POWER_OF_TEN.fullmatch(text):  # pandas writes the float32 number 1000000.0 as 1e+06
        text = str(float(text))
    if _WHOLE_FLOAT.fullmatch(text):
        return "0" if text == "-0.0" else text[:-2]
    if text in ("True", "False"):
        return text.lower()
    if _ISO_TIME.fullmatch(text):
        try:
            return _name_time(datetime.fromisoformat(text))
        except ValueError:  # such as month 13
            return text
    return text


def _name_time(moment: date) -> str:
    """Return the name of a time as a category, which is the date alone at midnight."""
    if isinstance(moment, datetime):
        is_midnight = moment.tzinfo is None and moment.time() == time.min
        return moment.date().isoformat() if is_midnight else moment.isoformat(" ")
    return moment.isoformat()


def read_time(cell: object, time_format: str = ISO) -> datetime:
    """Read a time from a date, or from a text or number in the format `time_format`.

    >>> read_time("2025-03-01 08:30").hour, read_time("1.3.2025", "%d.%m.%Y").month
    (8, 3)
    """
    cell = _convert_to_python(cell)
    if isinstance(cell, datetime):
        return cell
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day)
    try:
        if time_format == UNIX:
            return _EPOCH + timedelta(seconds=read_number(cell))
        if isinstance(cell, str):
            text = cell.strip()
            return (
                datetime.fromisoformat(text)
                if time_format == ISO
                else datetime.strptime(text, time_format)
            )
    except (ValueError, OverflowError):
        pass
    descriptions = {ISO: "a date in ISO 8601", UNIX: "seconds since 1970"}
    raise _make_cell_error(cell, descriptions.get(time_format, f"a date as {time_format}"))


def check_time_format(time_format: str) -> None:
    """Raise InputError unless a format is :data:`ISO`, :data:`UNIX` or a numeric strptime format.

    Formats with names of months or weekdays are refused, because they depend on the locale.
    """
    directives = re.findall("%(.?)", time_format)
    is_numeric = bool(directives) and set(directives) <= _DIRECTIVES
    if time_format not in (ISO, UNIX) and not is_numeric:
        raise InputError(
            f"{time_format!r} is not a format of a time: give iso, unix (seconds) or a format such "
            "as '%d.%m.%Y %H:%M' with the directives %Y %y %m %d %H %M %S %f %j %z"
        )


def time_part(moment: datetime, part: str) -> float:
    """Compute one of :data:`TIME_PARTS` in the time zone of the moment.

    >>> moment = read_time("2025-03-01T12:00:00+02:00")
    >>> time_part(moment, "weekday"), time_part(moment, "hour"), time_part(moment, "days") % 1
    (5.0, 12.0, 0.4166666666678793)
    """
    if part == "weekday":
        return float(moment.weekday())
    if part == "days":
        # (time in UTC - 1970-01-01) / 1 day
        # by differences, because the time in UTC may lie outside the calendar
        return (moment.replace(tzinfo=None) - _EPOCH - (moment.utcoffset() or timedelta())) / _DAY
    return float(getattr(moment, part))


#: Index of a label that is not a class of the bundle; every answer to such a row is wrong.
UNKNOWN_CLASS: Final = -2


def class_indices(labels: Iterable[Any], classes: Sequence[Any]) -> NDArray[np.int64]:
    """Find the class index of each label, int64 of shape (n,).

    A label belongs to the class with the same text or, if the classes are numbers, with the same
    value. True and false are 1 and 0 only if there are no other classes. Other labels have the
    index :data:`UNKNOWN_CLASS`.

    >>> class_indices(["7", "3.0", "x", 3], (3, 7)).tolist()
    [1, 0, -2, 0]
    """
    is_binary = set(classes) == {0, 1}  # also false and true
    index_of_text = {
        text: index
        for index, class_label in enumerate(classes)
        for text in _list_label_texts(class_label, is_binary=is_binary)
    }
    index_of_number = {
        number: index
        for index, class_label in enumerate(classes)
        if not isinstance(class_label, str) and (number := _read_number(class_label)) is not None
    }

    def find_class(label: object) -> int:
        index = index_of_text.get(str(label).strip())
        if index is None and not isinstance(label, bool | np.bool_):
            number = _read_number(label)
            index = None if number is None else index_of_number.get(number)
        return UNKNOWN_CLASS if index is None else index

    return np.array([find_class(label) for label in labels], np.int64)


def _list_label_texts(label: object, *, is_binary: bool) -> set[str]:
    """Return the texts by which rows may name a class label."""
    text = str(label).strip()
    word = str(bool(label))  # spreadsheets write TRUE
    return {text, word, word.lower(), word.upper()} if is_binary else {text}


def _read_number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None


def _convert_to_python(cell: object) -> Any:
    """Convert a cell of numpy or pandas to a Python type."""
    if type(cell) in (str, float, int, bool):
        return cell
    if isinstance(cell, np.datetime64):
        return cell.astype("datetime64[us]").item()
    if isinstance(cell, np.floating):
        # str() gives the digits that a file contains; float(cell) would add float64 digits
        return float(str(cell))
    if isinstance(cell, np.generic):
        return cell.item()
    # read periods, intervals and durations as the texts that pandas writes to files
    is_of_pandas = type(cell).__module__.partition(".")[0] == "pandas"
    return str(cell) if is_of_pandas and not isinstance(cell, datetime) else cell


def _make_cell_error(cell: object, requirement: str) -> InputError:
    return InputError(f"{str(cell)[:40]!r} is not {requirement}")
