"""docs/course: each sitting has its tours, its challenge and three questions, and works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zkconsumer.cli import app
from zkconsumer.cli.exits import Exit
from zkconsumer.judge.challenges import CHALLENGES
from zkconsumer.lab.tours import TOURS

FOLDER = Path(__file__).parents[2] / "docs" / "course"
SITTINGS = sorted(FOLDER.glob("[1-9]-*.md"))
ROW = re.compile(r"\| (\d) \| \[(.*?)\]\((.*?)\) \| (.*?) \| `(.*?)` \| \d+ \|")


def test_the_table() -> None:
    """The table of the course has the title, the tours and the first challenge of each sitting."""
    rows = ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [row[2] for row in rows] == [path.name for path in SITTINGS]
    for path, (number, title, _, tours, challenge) in zip(SITTINGS, rows, strict=True):
        page = path.read_text(encoding="utf-8")
        assert page.startswith(f"# {number}. {title}\n")
        assert re.findall(r"#tour=([\w-]+)&", page) == re.findall(r"`(.*?)`", tours)
        assert re.findall(r"--challenge (\S+)", page)[0] == challenge


@pytest.mark.parametrize("path", SITTINGS, ids=lambda path: str(path.stem))
def test_a_sitting(path: Path) -> None:
    """A sitting names existing tours and challenges, and asks three questions."""
    page = path.read_text(encoding="utf-8")
    for title, name in re.findall(r"\*([^*]+)\* \(`#tour=([\w-]+)&", page):
        assert TOURS[name].title == title
    assert set(re.findall(r"--challenge (\S+)", page)) <= CHALLENGES.keys()
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings == [
        "In the lab (15 minutes)",
        "Write it (20 minutes)",
        "Questions (10 minutes)",
    ]
    assert re.findall(r"^(\d)\. \*\*.*", page.partition("## Questions")[2], re.MULTILINE) == [
        "1",
        "2",
        "3",
    ]


def test_the_first_member(tmp_path: Path) -> None:
    """The member of the first sitting fails as it is, and passes with its hint carried out."""
    page = SITTINGS[0].read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    made = (
        "        for path in (root, f'{root}/ids'):\n"
        "            await self.create(path)\n"
        "        data = json.dumps(registration)\n"
        "        await self.create(f'{root}/ids/{self.name}', data=data, ephemeral=True)\n\n\n"
        "if __name__"
    )
    finished = program.replace("\n\nif __name__", made)
    assert finished != program
    for text, code in ((program, Exit.FOUND), (finished, Exit.OK)):
        file = tmp_path / f"member_{code}.py"
        file.write_text(text, encoding="utf-8")
        judged = [str(file), "--challenge", "register", "--schedules", "5"]
        assert CliRunner().invoke(app, ["judge", *judged]).exit_code == code
