"""Checks of the arguments of public calls: each raises ConfigError, which shows the right form.

Python does not check types. Without these checks a wrong argument would raise one of Python's own
errors deep inside the package, or would be taken for something else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import TopicPartition

T = TypeVar("T")

FOREVER_S = 2_000_000.0
"""What a call waits for if its time limit is None, in seconds: about 23 days.

librdkafka counts milliseconds in 32 bits, so no limit can be longer than 24.8 days.
"""

LONG_S = 3600.0
"""A longer time limit, in seconds, may be meant in milliseconds."""

MAX_COUNT = 2**31 - 1
"""The greatest number of messages that one call may ask for; librdkafka counts with 32 bits."""

ONE_PARTITION = "TopicPartition('orders', 0)"


def wrong(value: object, what: str, *, where: str, right: str) -> ConfigError:
    """Return the error for an argument that is not `what`; `right` shows what to pass."""
    return ConfigError(f"{shown(value)} is not {what}", where=where, remedy=f"pass {right}")


def shown(value: object) -> str:
    """Return a value for an error: its first 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---- partitions ----------------------------------------------------------------------------------


def partition(given: object, where: str) -> TopicPartition:
    """Return a partition; raise ConfigError if the argument is anything else."""
    if isinstance(given, tuple) and len(given) == 2:
        topic, number = given
        if isinstance(topic, str) and type(number) is int:
            return TopicPartition(topic, number)
    raise wrong(given, "a partition", where=where, right=ONE_PARTITION)


def partitions(given: TopicPartition | Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the argument `partitions` as a list; raise ConfigError for anything else."""
    where = "partitions"
    if isinstance(given, TopicPartition):
        return [partition(given, where)]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        right = f"{ONE_PARTITION}, or a list of partitions"
        raise wrong(given, "a list of partitions", where=where, right=right)
    return [partition(one, where) for one in given]


def by_partition(given: object, where: str, value: str) -> Mapping[TopicPartition, object]:
    """Return a mapping with partitions as keys; raise ConfigError for anything else.

    `value` shows the right form of a value.
    """
    right = f"{{{ONE_PARTITION}: {value}}}"
    if not isinstance(given, Mapping):
        raise wrong(given, "a mapping from partitions", where=where, right=right)
    return {partition(key, where): one for key, one in given.items()}


# ---- numbers and times ---------------------------------------------------------------------------


def count(given: object) -> int:
    """Return `max_messages`; raise ConfigError unless it is from 1 to `MAX_COUNT`."""
    if type(given) is not int or not 1 <= given <= MAX_COUNT:
        right = f"an integer from 1 to {MAX_COUNT}"
        raise wrong(given, "a number of messages", where="max_messages", right=right)
    return given


def time_limit(given: float | None, where: str = "timeout_s") -> float | None:
    """Return a time limit in seconds; None waits without a limit.

    A limit above an hour causes a warning, because it may be meant in milliseconds. Raises
    ConfigError for a negative value, NaN, and anything that is no number.
    """
    if given is None or (isinstance(given, float) and given == math.inf):
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not given >= 0:
        right = "seconds of at least 0, or None to wait without a limit"
        raise wrong(given, "a time limit", where=where, right=right)
    if given > LONG_S:
        text = f"{where}={given:g} means {given / 3600:.3g} hours; the unit is seconds"
        warnings.warn(text, UserWarning, stacklevel=4)
    return min(given, FOREVER_S)


def finite_limit(given: float | None, where: str = "timeout_s") -> float:
    """Return a time limit as `time_limit` does; None becomes `FOREVER_S`."""
    limit_s = time_limit(given, where)
    return FOREVER_S if limit_s is None else limit_s


# ---- names and functions -------------------------------------------------------------------------


def names(given: str | Iterable[str], where: str) -> list[str]:
    """Return one name, or several, as a list; raise ConfigError for anything else."""
    if isinstance(given, str):
        return [given]
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else [given]
    for one in found:
        if not isinstance(one, str):
            raise wrong(one, "a name", where=where, right="a text, or a list of texts")
    return [one for one in found if isinstance(one, str)]


def name(given: object, where: str) -> str:
    """Return one name; raise ConfigError for anything else."""
    if not isinstance(given, str):
        raise wrong(given, "a name", where=where, right="a text")
    return given


def selection(given: object) -> dict[str, frozenset[int] | None] | None:
    """Return the argument `topics`, a selection of partitions, or None for all.

    Raises ConfigError for anything else.
    """
    where = "topics"
    if given is None:
        return None
    right = "{'orders': {0, 1}, 'audit': None}: topic -> partition numbers, None for all of them"
    if not isinstance(given, Mapping):
        raise wrong(given, "a selection of partitions", where=where, right=right)
    found: dict[str, frozenset[int] | None] = {}
    for topic, numbers in given.items():
        is_listed = isinstance(numbers, Collection) and all(type(one) is int for one in numbers)
        if not isinstance(topic, str) or not (numbers is None or is_listed):
            raise wrong({topic: numbers}, "a selection of partitions", where=where, right=right)
        found[topic] = None if numbers is None else frozenset(numbers)
    return found


def function(given: Callable[..., T] | None, where: str) -> Callable[..., T] | None:
    """Return a function or None; raise ConfigError if the argument cannot be called."""
    if given is not None and not callable(given):
        raise ConfigError(f"{shown(given)} cannot be called", where=where, remedy="pass a function")
    return given
