"""Java's and Scala's rules: text order, hashes, JSON dialects, regular expressions, exceptions."""

from __future__ import annotations


class JavaError(Exception):
    """The JVM throws an exception: `kind` is its class, `text` its `getMessage`."""

    def __init__(self, kind: str, text: str | None = None) -> None:
        super().__init__(kind if text is None else text)
        self.kind = kind
        self.text = "null" if text is None else text
