"""The class of row classes, compared with what `dataclass` makes of the same declaration."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest

from zkconsumer.history.row_class import Row, as_values


class Base(Row):
    number: int


class Later(Base):
    name: str
    found: list[str] = field(default_factory=list)
    last: int | None = None

    def shown(self) -> str:
        return f"{self.name} {self.last}"


@dataclass(slots=True, kw_only=True)
class LikeBase:
    number: int


@dataclass(slots=True, kw_only=True)
class LikeLater(LikeBase):
    name: str
    found: list[str] = field(default_factory=list)
    last: int | None = None


@pytest.mark.parametrize("values", [{}, {"last": 7}, {"found": ["a"], "last": None}])
def test_a_row_has_the_values_of_a_dataclass(values: dict[str, object]) -> None:
    """A row has the fields, the defaults and the text of a dataclass."""
    row, like = Later(number=1, name="n", **values), LikeLater(number=1, name="n", **values)
    assert as_values(row) == [like.number, like.name, like.found, like.last]
    assert repr(row) == repr(like).replace("LikeLater", "Later")
    assert row.shown() == f"n {row.last}"


def test_rows_share_no_list() -> None:
    """Each row gets a list of its own."""
    first, second = Later(number=1, name="n"), Later(number=1, name="n")
    first.found.append("a")
    assert second.found == []


def test_rows_are_equal_by_their_values() -> None:
    """Two rows are equal if their class and their values are; a row has no hash."""
    assert Later(number=1, name="n") == Later(number=1, name="n")
    assert Later(number=1, name="n") != Later(number=2, name="n")
    assert Later(number=1, name="n") != LikeLater(number=1, name="n")
    with pytest.raises(TypeError):
        hash(Later(number=1, name="n"))


def test_the_first_row_of_a_base_does_not_change_its_subclasses() -> None:
    """A class has its own constructor, even if a row of its base was created before."""

    class Parent(Row):
        number: int

    class Child(Parent):
        name: str

    assert as_values(Parent(number=1)) == [1]
    assert as_values(Child(number=2, name="n")) == [2, "n"]


@pytest.mark.parametrize("values", [{"number": 1}, {"number": 1, "name": "n", "other": 1}])
def test_a_wrong_field_is_refused(values: dict[str, object]) -> None:
    """A missing and an unknown field raise TypeError, for the first row and for later ones."""

    class Fresh(Base):
        name: str

    for _ in range(2):
        with pytest.raises(TypeError):
            Fresh(**values)
    with pytest.raises(AttributeError):
        Fresh(number=1, name="n").other = 1


def test_a_row_can_be_pickled() -> None:
    """A row that was pickled is equal to its original."""
    row = Later(number=1, name="n", found=["a"])
    assert pickle.loads(pickle.dumps(row)) == row
