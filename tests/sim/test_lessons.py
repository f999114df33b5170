"""The figures that the lessons compute agree with their texts."""

from __future__ import annotations

from zkconsumer.sim.lessons import herd_effect


def test_the_herd_effect() -> None:
    """All JVM members are notified, and their reads grow faster than the number of members."""
    *_, lesson = herd_effect((2, 5, 10, 20))
    sizes = [row[0] for row in lesson.rows]
    notified = [row[lesson.head.index("JVM notifications")] for row in lesson.rows]
    assert sizes == [2, 5, 10, 20]
    assert notified == sizes
    laws = dict(word.split(" grow as members^") for word in lesson.words[:-1])
    assert float(laws["JVM reads"]) > 1.0
    assert set(laws) == set(lesson.head[1:])


def test_a_lesson_grows() -> None:
    """Each row of a lesson is yielded when computed, so it is shown before the next row."""
    assert [len(lesson.rows) for lesson in herd_effect((2, 5))] == [1, 2, 2]
