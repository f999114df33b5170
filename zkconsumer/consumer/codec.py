"""The user's decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Codec(Generic[K, V]):
    """The user's decoders of keys and values; None leaves the bytes as they are.

    `failed` is told of every exception of a decoder, as text, before it is raised.
    """

    __slots__ = ("failed", "key", "value")

    def __init__(
        self,
        key: Callable[[bytes], K] | None = None,
        value: Callable[[bytes], V] | None = None,
        failed: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.key = key
        self.value = value
        self.failed = failed
