"""Operators' operations on groups, as one object and as functions.

`Admin` has a method for each recipe of docs/operators.md. The modules behind it read groups, plan
changes as values, and apply or undo plans. Apart from the imitations of Kafka's old tools, only
`apply` writes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zkconsumer.admin.api import Admin
    from zkconsumer.admin.apply import Live, Report
    from zkconsumer.admin.findings import Finding
    from zkconsumer.admin.migrate import Direction
    from zkconsumer.admin.offset_files import FileFormat
    from zkconsumer.admin.offset_plans import Kind, Reset
    from zkconsumer.admin.plan import Plan

__all__ = [
    "Admin",
    "Reset",
    "Kind",
    "Direction",
    "FileFormat",
    "Live",
    "Plan",
    "Report",
    "Finding",
]

_HOMES = {
    "Admin": "zkconsumer.admin.api",
    "Live": "zkconsumer.admin.apply",
    "Report": "zkconsumer.admin.apply",
    "Finding": "zkconsumer.admin.findings",
    "FileFormat": "zkconsumer.admin.offset_files",
    "Direction": "zkconsumer.admin.migrate",
    "Plan": "zkconsumer.admin.plan",
    "Kind": "zkconsumer.admin.offset_plans",
    "Reset": "zkconsumer.admin.offset_plans",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: a command that needs one module must not load all of them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
