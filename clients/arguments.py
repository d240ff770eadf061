"""Numbers that users pass to calls, checked: the error names the argument, its value and what may stand there."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from netreplay.errors import BadConfigError, BadCountError

_SHOWN = 80  # characters of a value in an error


def shown(value: object) -> str:
    """A value for an error: never a whole array."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def is_number(value: Any) -> bool:
    """A real number of Python's or numpy's, NaN among them; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def seconds(value: Any, name: str = "timeout") -> float:
    """A time limit: a number of seconds >= 0; infinity is for ever. BadConfigError for anything else."""
    if type(value) is float and value >= 0.0:
        return value
    if is_number(value) and value >= 0:
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise BadConfigError(f"{name}: {shown(value)} is not a number of seconds >= 0", field=name, value=value)


def whole(value: object, name: str, low: int, high: int) -> int:
    """A whole number between `low` and `high`; BadCountError for anything else, True and 2.0 among it."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and low <= value <= high:
        return int(value)
    raise BadCountError(
        f"{name}: {shown(value)} is not a whole number between {low} and {high}", field=name, value=value
    )
