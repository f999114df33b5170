"""Pages without a server: a static site that runs the engine in the browser, and one run as a file.

The site contains Pyodide, which is CPython as WebAssembly. The build fetches it with npm at a
pinned hash; it is not part of the package. The site's worker imports the same modules as the
server, so the members in a visitor's browser run the production code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from zkconsumer.errors import ConfigError
from zkconsumer.protocol.model import Json, JsonObject
from zkconsumer.safe_logger import SafeLogger

logger = SafeLogger(logging.getLogger(__name__))

WEB = Path(__file__).parent / "web"
COMPILER = Path(__file__).with_name("compile.mjs")
PACKAGE = Path(__file__).parents[1]

PYODIDE = "314.0.7"
PYODIDE_SHA512 = (
    "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
)
"""Pyodide's npm package, and the SHA-512 of its archive in Base64, as in npm's lock files.
"""

RUNTIME = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
"""The files of Pyodide that a site needs."""

FETCHED = (
    "zkconsumer.zip",
    "pyodide/pyodide.asm.wasm",
    "pyodide/python_stdlib.zip",
    "pyodide/pyodide-lock.json",
)
"""The files that the page's worker fetches. It shows how much of them has arrived."""

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; worker-src 'self'; base-uri 'none';"
    " form-action 'none'"
)

NOTICES = """This site contains:

zkconsumer: Apache License 2.0.
Preact (MIT) and htm (Apache License 2.0): see vendor/LICENSES.txt.
Pyodide {version}: Mozilla Public License 2.0, https://mozilla.org/MPL/2.0/. Its source is the
project pyodide/pyodide.
CPython and its standard library, compiled by Pyodide: Python Software Foundation License 2,
https://docs.python.org/3/license.html. That page lists the notices of the libraries that CPython
bundles, such as zlib, libffi and expat.
"""

_MOMENT = (2020, 1, 1, 0, 0, 0)
"""The time of all entries of an archive, so that equal sources give equal archives."""


# ---- the static site -----------------------------------------------------------------------------


def build(directory: Path, *, runtime: Path | None = None) -> None:
    """Write the site into a directory, which is created; existing files are replaced.

    Args:
        runtime: an archive of Pyodide's npm package; None fetches it with npm.

    Raises ConfigError if npm or the archive is missing, or if its hash differs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in WEB.rglob("*"):
        if path.is_file():
            target = directory / path.relative_to(WEB)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    (directory / "LICENSES.txt").write_text(NOTICES.format(version=PYODIDE), encoding="utf-8")
    write_modules(directory / "zkconsumer.zip")
    with TemporaryDirectory(prefix="zkconsumer-pyodide-") as scratch:
        unpack_runtime(runtime or fetch_runtime(Path(scratch)), directory / "pyodide")
    compile_modules(directory)
    write_page(directory)


def write_page(directory: Path) -> None:
    """Write the page, which says that a worker runs the engine, and how many bytes it fetches."""
    fetched = sum((directory / name).stat().st_size for name in FETCHED)
    marks = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="lab-worker" content="{fetched}">\n<meta charset="utf-8">'
    )
    page = (WEB / "index.html").read_text(encoding="utf-8")
    page = page.replace('<meta charset="utf-8">', marks)
    (directory / "index.html").write_text(page, encoding="utf-8")


def compile_modules(directory: Path) -> None:
    """Replace the source of the modules that the engine imports by compiled code.

    Otherwise the visitor's browser would compile the modules at each visit, which takes half of the
    start-up time. The site's own Python compiles the modules in Node.js; without Node.js the site
    contains their source.

    Raises ConfigError if the site's Python does not run.
    """
    node = shutil.which("node")
    if node is None:
        logger.warning("Node.js is missing: the site starts more slowly")
        return
    done = subprocess.run(
        [node, str(COMPILER), str(directory.absolute())],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(
            "the site's modules could not be compiled",
            where=(done.stderr.strip().splitlines() or [node])[-1][:500],
            remedy="install Node.js 20 or later",
        )


def write_modules(target: Path) -> None:
    """Write the engine's modules as an archive that is the same for equal sources."""
    program = (
        "import sys, zkconsumer.lab.engine\n"
        "import zkconsumer.lab.comparisons, zkconsumer.lab.coordinated, zkconsumer.lab.bridged\n"
        "print(zkconsumer.__file__)\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'zkconsumer'),"
        " sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    # Behind a symbolic link, the new process sees other paths than this one.
    above = Path(found[0]).parents[1]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted({Path(name) for name in found if name}):
            entry = zipfile.ZipInfo(str(file.relative_to(above)), _MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())


def fetch_runtime(directory: Path) -> Path:
    """Fetch Pyodide's npm package. Raises ConfigError."""
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(
            "npm, which fetches Pyodide, is missing",
            where="zkconsumer lab build",
            remedy="install npm, or give the package's archive with --pyodide",
        )
    command = [npm, "pack", "--ignore-scripts", f"pyodide@{PYODIDE}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    found = list(directory.glob("pyodide-*.tgz"))
    if done.returncode or not found:
        raise ConfigError(
            f"npm could not fetch pyodide@{PYODIDE}",
            where=(done.stderr.strip().splitlines() or ["npm pack"])[-1],
            remedy="check the network, or give the package's archive with --pyodide",
        )
    return found[0]


def unpack_runtime(archive: Path, target: Path) -> None:
    """Unpack what a site needs. Raises ConfigError if the archive's hash is not the pinned one."""
    try:
        content = archive.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the archive cannot be read: {error.strerror}", where=str(archive), remedy="correct it"
        ) from error
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != PYODIDE_SHA512:
        raise ConfigError(
            f"the archive is not that of pyodide {PYODIDE}",
            where=str(archive),
            remedy=f"its SHA-512 must be {PYODIDE_SHA512}",
        )
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as package:
        for name in RUNTIME:
            member = package.extractfile(f"package/{name}")
            assert member is not None, name
            data = member.read()
            if name == "pyodide-lock.json":
                data = _without_packages(data)
            (target / name).write_bytes(data)


def _without_packages(lock: bytes) -> bytes:
    """Return Pyodide's lock file without packages: the site loads none."""
    content = json.loads(lock)
    content["packages"] = {}
    return json.dumps(content, separators=(",", ":")).encode()


# ---- one run as one file -------------------------------------------------------------------------

RUN_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"
)


def modules() -> list[str]:
    """Return the page's scripts, which index.html lists; the player of a run needs all of them."""
    page = (WEB / "index.html").read_text(encoding="utf-8")
    return [*re.findall(r'rel="modulepreload" href="([^"]+)\.js"', page), "app"]


def player(events: Sequence[Mapping[str, Json]], title: str) -> str:
    """Return a self-contained page that plays a run. `exports.js` creates the same page."""
    imports = {}
    for name in modules():
        source = (WEB / f"{name}.js").read_text(encoding="utf-8")
        source = re.sub(r'from "\./(?:vendor/)?([\w-]+)\.js"', r'from "lab/\1"', source)
        imports[f"lab/{name.rpartition('/')[2]}"] = _data("text/javascript", source)
    icon = _data("image/svg+xml", (WEB / "icon.svg").read_text(encoding="utf-8"))
    style = (WEB / "style.css").read_text(encoding="utf-8")
    start = (WEB / "start.js").read_text(encoding="utf-8")
    run = json.dumps(events, separators=(",", ":")).replace("<", "\\u003c")
    shown = title.replace("&", "&amp;").replace("<", "&lt;")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{RUN_POLICY}">\n'
        f"<title>{shown}</title><script>{start}</script>"
        f'<link rel="icon" href="{icon}"><style>{style}</style>\n'
        f'<script type="importmap">{json.dumps({"imports": imports})}</script></head>\n'
        '<body><div id="app"><p class="loading">The player is loading …</p></div>\n'
        f'<script id="recorded" type="application/json">{run}</script>\n'
        '<script type="module">import "lab/app";</script></body></html>\n'
    )


def recorded(events: Sequence[Mapping[str, Json]]) -> list[JsonObject]:
    """Return the events of a simulated run in the form of a recorded run's events."""
    words = "A recorded run of the simulator. Nothing can be changed."
    return [
        {**event, "kind": "recorded", "about": {"words": words}}
        if event["event"] == "run"
        else dict(event)
        for event in events
    ]


def _data(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
