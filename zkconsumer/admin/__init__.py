"""Operators' operations on groups: the class `Admin`, and the functions behind its methods.

`Admin` has a method for each recipe of docs/operators.md. The other modules read groups, make plans
of changes, and apply or undo plans. Only `admin.apply` writes, except that `admin.legacy` deletes
the group that an old tool created for one run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zkconsumer.admin.api import Admin
    from zkconsumer.admin.apply import Live, Report
    from zkconsumer.admin.findings import Finding
    from zkconsumer.admin.migrate import Direction
    from zkconsumer.admin.offset_files import FileFormat
    from zkconsumer.admin.offset_plans import Kind, Reset
    from zkconsumer.admin.past_sources import PastSources
    from zkconsumer.admin.plan import Plan
    from zkconsumer.history.offsets import Choice, Point

__all__ = [
    "Admin",
    "Choice",
    "Direction",
    "FileFormat",
    "Finding",
    "Kind",
    "Live",
    "PastSources",
    "Plan",
    "Point",
    "Report",
    "Reset",
]

_HOMES = {
    "Admin": "zkconsumer.admin.api",
    "Live": "zkconsumer.admin.apply",
    "Report": "zkconsumer.admin.apply",
    "Finding": "zkconsumer.admin.findings",
    "FileFormat": "zkconsumer.admin.offset_files",
    "Direction": "zkconsumer.admin.migrate",
    "PastSources": "zkconsumer.admin.past_sources",
    "Plan": "zkconsumer.admin.plan",
    "Choice": "zkconsumer.history.offsets",
    "Point": "zkconsumer.history.offsets",
    "Kind": "zkconsumer.admin.offset_plans",
    "Reset": "zkconsumer.admin.offset_plans",
}


def __getattr__(name: str) -> object:
    # Modules are imported on first use, so that a command loads only the modules it needs.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
