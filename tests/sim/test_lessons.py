"""The figures of the lessons agree with their texts."""

from __future__ import annotations

from zkconsumer.sim.lessons import herd_effect


def test_the_herd_effect() -> None:
    """All JVM members are notified; their reads grow faster than the number of members."""
    *_, lesson = herd_effect((2, 5, 10, 20))
    sizes = [row[0] for row in lesson.rows]
    notified = [row[lesson.head.index("JVM notifications")] for row in lesson.rows]
    assert sizes == [2, 5, 10, 20]
    assert notified == sizes
    laws = dict(word.split(" grow as members^") for word in lesson.words[:-1])
    assert float(laws["JVM reads"]) > 1.0
    assert set(laws) == set(lesson.head[1:])


def test_a_lesson_grows() -> None:
    """Rows are yielded one at a time, so that each is shown while the next one is computed."""
    assert [len(lesson.rows) for lesson in herd_effect((2, 5))] == [1, 2, 2]
