"""Leave out of built packages what only readers of the source need, so that the wheel has 1 MB.

Everything else is in setup.cfg. The modules of the wheel lack comments, and the docstrings of
attributes, of private functions and classes, and of internal modules. Packages that users do not
import (`NOT_IMPORTED`) keep only the docstrings of decorated functions, such as commands; `sim` is
not among them, because `simulate` prints the docstrings of its lessons. The lab's scripts lack
lines that are only a comment. Empty lines replace what is left out, so that the line numbers of
tracebacks are those of the repository. The sdist and an editable installation have the modules
unchanged.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PUBLIC = {"__init__", "admin", "aio", "config", "consumer", "errors", "spark"}
"""Packages and modules that users import; their modules keep their docstrings."""

NOT_IMPORTED = {"cli", "demo", "history", "kafka", "lab", "later", "sandbox"}
"""Packages that users do not import; only decorated functions keep their docstrings."""

SCRIPTS = "zkconsumer/lab/web/*.js"
"""The lab's own scripts; those of `vendor` stay as their authors published them."""

COMMENT_LINE = re.compile(r"^[ \t]*//.*$", re.MULTILINE)


def without_comments(text: str, top_package: str) -> str:
    """Return the text of a module as the wheel has it.

    `top_package`: the part of the module's name directly below `zkconsumer`, such as "cli".
    """
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    for first, last in _spans(ast.parse(text), top_package):
        lines[first - 1 : last] = ["\n"] * (last - first + 1)
    return "".join(lines)


def _spans(tree: ast.Module, top_package: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each docstring to remove."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for place, one in enumerate(body if isinstance(body, list) else ()):
            is_hidden = place > 0 or _is_private(node, top_package)
            if is_hidden and len(body) > 1 and _is_text(one):
                yield one.lineno, one.end_lineno or one.lineno


def _is_text(one: ast.stmt) -> bool:
    """Return whether a statement is only a text, such as a docstring."""
    is_constant = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    return is_constant and isinstance(one.value.value, str)


def _is_private(node: ast.AST, top_package: str) -> bool:
    """Return whether the docstring of a node is left out.

    A decorator may use the docstring of its function: the simulator's stories do.
    """
    if isinstance(node, ast.Module):
        return top_package not in PUBLIC
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    if node.decorator_list:
        return False
    return top_package in NOT_IMPORTED or (
        node.name.startswith("_") and not node.name.endswith("__")
    )


class BuildPy(build_py):
    """Copies the modules, and shortens the copies."""

    def build_module(
        self, module: str, module_file: str, package: str | tuple[str, ...]
    ) -> tuple[str, bool]:
        copied: tuple[str, bool] = super().build_module(module, module_file, package)
        names = package.split(".") if isinstance(package, str) else list(package)
        top_package = (*names[1:], module)[0]
        target = Path(copied[0])
        text = target.read_text(encoding="utf-8")
        target.write_text(without_comments(text, top_package), encoding="utf-8")
        return copied

    def build_package_data(self) -> None:
        super().build_package_data()
        for script in Path(self.build_lib).glob(SCRIPTS):
            text = script.read_text(encoding="utf-8")
            script.write_text(COMMENT_LINE.sub("", text), encoding="utf-8")


setup(cmdclass={"build_py": BuildPy})
