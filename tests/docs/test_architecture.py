"""docs/architecture.md and CONTRIBUTING.md name modules, functions and tests that exist."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zkconsumer"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
FIXTURES = ("legacy_kafka",)  # of pytest: also names of modules
HOP = re.compile(r"^\| [\w' ]*\| `([\w.]+)` \| ", re.MULTILINE)
MODULES_MAX = 12


def _section(page: str, heading: str) -> str:
    return page.split(f"\n{heading}\n")[1].split("\n## ", maxsplit=1)[0]


@cache
def _names(path: Path) -> frozenset[str]:
    """Return the names that a module defines, and its `Class.member` names."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found.update(_defined(node))
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}.{name}" for one in node.body for name in _defined(one))
    return frozenset(found)


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign():
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return the names that a module imports from other modules."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = (one for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names)
    return frozenset(one.asname or one.name for one in found)


def _exists(name: str) -> bool:
    """Return whether a dotted name below zkconsumer is a package, a module, or a name in one."""
    path, parts = PACKAGE, name.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if parts and (path / f"{parts[0]}.py").exists():
        path /= f"{parts.pop(0)}.py"
    else:
        path /= "__init__.py"
    return not parts or ".".join(parts) in _names(path) or parts[0] in _imported(path)


def _file(module: str) -> Path:
    """Return the file of a module `a.b` or `a/b`, or the file of a package."""
    path = PACKAGE.joinpath(*re.split(r"[./]", module))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_the_layers() -> None:
    """The table of layers equals the table in tests/static/test_package_imports.py."""
    permitted = runpy.run_path(str(ROOT / "tests" / "static" / "test_package_imports.py"))[
        "PERMITTED"
    ]
    names = {"java": "protocol.java", "tables": "spark.tables"}
    expected = {
        names.get(package, package): {names.get(one, one) for one in others}
        - {"errors", "frozen", "safe_logger"}
        for package, others in permitted.items()
    }
    shown = {}
    for line in _section(ARCHITECTURE, "## The layers").splitlines():
        if line.startswith("| `"):
            first, *_, last = line.strip("|").split("|")
            shown[first.strip(" `")] = set(re.findall(r"`([\w.]+)`", last))
    assert shown == expected


def _wings() -> dict[str, set[str]]:
    """Return wing -> packages, from the table of wings, without the folders beside zkconsumer/."""
    wings = {}
    for line in _section(ARCHITECTURE, "## The five wings").splitlines():
        if line.startswith("| the "):
            name, packages, _ = line.strip("|").split("|")
            wings[name.strip()] = set(re.findall(r"`([\w.]+)`", packages)) - {"scripts", "tests"}
    return wings


def test_the_wings() -> None:
    """Each package belongs to one wing, and the table of layers is grouped by the wings."""
    grouped: dict[str, set[str]] = {}
    for line in _section(ARCHITECTURE, "## The layers").splitlines():
        if wing := re.match(r"\| \*\*(The .*)\*\* \|", line):
            group = grouped[wing[1].lower()] = set()
        elif package := re.match(r"\| `([\w.]+)` \|", line):
            group.add(package[1])
    grouped["the consumer"].discard("protocol.java")  # The table of wings says `protocol`.
    assert _wings() == grouped


def test_the_consumer_imports_no_other_wing() -> None:
    """No package of the consumer may import another wing or `protocol.later`; `zkconsumer` does."""
    found = runpy.run_path(str(ROOT / "tests" / "static" / "test_package_imports.py"))
    consumer = _wings()["the consumer"] - {"zkconsumer"} | {"java"}
    others = set().union(*(found["PERMITTED"][package] for package in consumer))
    assert others <= consumer
    for module in found["modules"]():
        later = {
            one for one in found["imports"](module) if one.startswith("zkconsumer.protocol.later")
        }
        assert not later or module.split(".")[1] not in consumer or "later" in module, module


def test_the_phases_of_a_rebalance() -> None:
    """The page lists the phases of the machine in the machine's order."""
    (chain,) = re.findall(r"(?:`[a-z]+`\s+→\s+)+`[a-z]+`", ARCHITECTURE)
    named = re.findall(r"`([a-z]+)`", chain)
    order = _phases()
    assert len(named) > 1
    assert named == sorted(named, key=order.index)


def _phases() -> list[str]:
    """Return the values of `Phase` in their order."""
    classes = [
        node
        for path in (PACKAGE / "member").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "Phase"
    ]
    (phase,) = classes
    return [
        one.value.value
        for one in phase.body
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    ]


def test_generated_sections() -> None:
    """Each part that a command generates is marked exactly once."""
    lanes = (ROOT / "docs" / "test-lanes.md").read_text(encoding="utf-8")
    for page, name in ((ARCHITECTURE, "phases"), (lanes, "lanes")):
        start, end = f"\n<!-- {name} -->\n", f"\n<!-- /{name} -->\n"
        assert (page.count(start), page.count(end)) == (1, 1)
        assert page.index(start) < page.index(end)


def test_the_path_of_a_watch() -> None:
    """Each step of the path is an existing function; the path visits at most twelve modules."""
    hops = HOP.findall(_section(ARCHITECTURE, "## The path of a watch"))
    modules = set()
    for hop in hops:
        package, module, name = hop.split(".", 2)
        modules.add(f"{package}.{module}")
        assert name in _names(_file(f"{package}.{module}")), hop
    assert 1 < len(modules) <= MODULES_MAX
    assert hops[-1] == "consumer.stream.StreamReader.grant"


def _meanings(name: str, page: Path) -> list[str]:
    """Return what a dotted name on a page may mean below zkconsumer; nothing if it is no code."""
    first, rest = name.split(".", 1)
    if first == "zkconsumer":
        return [rest]
    if "_" in first and first not in FIXTURES:
        homes = (path.relative_to(PACKAGE).parent for path in PACKAGE.rglob(f"{first}.py"))
        return [".".join((*home.parts, name)) for home in homes]
    is_code = page.name in ("architecture.md", "CONTRIBUTING.md") and (PACKAGE / first).is_dir()
    return [name] if is_code else []


def test_the_names_of_the_code() -> None:
    """Each dotted name of a module, class or function of zkconsumer on a page exists."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    no_code = {"zkconsumer.consumer.journal", *re.findall(r"`([\w.]+)`", CONFIGURATION)}
    count, missing = 0, list[str]()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+(?:\.\w+)+)(?:\([^`]*\))?`", text):
            if name not in no_code and (meanings := _meanings(name, page)):
                count += 1
                missing += [] if any(map(_exists, meanings)) else [f"{page.name}: {name}"]
    assert not missing
    assert count > 50


def _file_map() -> Iterator[tuple[list[str], set[str]]]:
    """Return the rows of the file map: modules as paths below zkconsumer/, and the key types."""
    text = _section(CONTRIBUTING, "## File map")
    for part in re.split(r"^###+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        packages = re.findall(r"`([\w/]+)/`", heading)
        above = f"{packages[0]}/" if len(packages) == 1 else ""
        plain = re.sub(r"\([^)]*\)", "", body.partition("\n| ")[0])
        yield [above + name for name in re.findall(r"`([a-z_]+)`", plain)], set()
        for line in body.splitlines():
            if line.startswith("| `"):
                modules, _, types = line.strip("|").split("|")
                names = [above + name for name in re.findall(r"`([\w/]+)`", modules)]
                yield names, set(re.findall(r"`(\w+)`", types))


def test_the_file_map_is_complete() -> None:
    """The file map names exactly the modules of zkconsumer."""
    listed = {name for names, _ in _file_map() for name in names}
    assert not {one for one in listed if not (PACKAGE / one).is_dir() and not _file(one).exists()}
    # If the map lists no modules of a folder, the folder stands for all its modules.
    folders = {name for name in listed if name.endswith("/")}
    folders = {one for one in folders if not any(n != one and n.startswith(one) for n in listed)}
    modules = {
        path.relative_to(PACKAGE).with_suffix("").as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    left = modules - listed
    assert {name for name in left if not any(name.startswith(one) for one in folders)} == set()


def test_the_key_types() -> None:
    """Each key type in the file map is defined in a module of its row."""
    count, missing = 0, list[str]()
    for modules, types in _file_map():
        defined: set[str] = set()
        for name in modules:
            file = _file(name.rstrip("/"))
            for one in file.parent.glob("*.py") if name.endswith("/") else [file]:
                defined |= _names(one)
        missing += [f"{modules}: {name}" for name in sorted(types - defined)]
        count += len(types)
    assert not missing
    assert count > 50


def test_the_questions() -> None:
    """Each answer names at most two files, which exist and define the functions it names."""
    rows = [
        line.strip("|").split("|")
        for line in _section(CONTRIBUTING, "## Where is …?").splitlines()
        if line.startswith("| Wh") or line.startswith("| How")
    ]
    assert len(rows) >= 15
    for question, answer in rows:
        found = re.findall(r"`([\w/]+\.py)`(?: \((?:`([\w.]+)`)?)?", answer)
        assert len(found) <= 2, question
        assert found or "`admin/checks/`" in answer or "`member/`" in answer, question
        for file, name in found:
            assert (PACKAGE / file).exists(), file
            assert not name or name in _names(PACKAGE / file), f"{file}: {name}"


def test_the_invariants_have_tests() -> None:
    """The tests, mutants and stories that guard an invariant on the page exist."""
    text = CONTRIBUTING.split("\n## Non-obvious\n")[1].split("\n## Style\n")[0]
    named = re.findall(r"`(test_\w+): (test_\w+)`", " ".join(text.split()))
    assert len(named) >= 15
    for file, name in named:
        paths = list((ROOT / "tests").rglob(f"{file}.py"))
        assert any(name in _names(path) for path in paths), f"{file}: {name}"
    homes = (ROOT / "tests/support/sim/mutants.py", ROOT / "zkconsumer/sim/weakened.py")
    mutants = "".join(home.read_text(encoding="utf-8") for home in homes)
    told = " ".join(text.split())
    for name in re.findall(r"`([^`]+)`", told.split("Mutants: ")[1].split(" - **")[0]):
        assert re.search(rf'(Mutant|Weakness)\(\s*"{name}"', mutants), name
    for story in re.findall(r"`(tests/[\w/.-]+\.txt)`", text):
        assert (ROOT / story).exists()
