"""Spark data sources for legacy groups: reading topics, committing offsets, and tables of groups.
Requires `zkconsumer[spark]`.
"""

from importlib.util import find_spec

_missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
if _missing:
    raise ModuleNotFoundError(
        f"zkconsumer.spark needs {' and '.join(_missing)}: pip install 'zkconsumer[spark]'",
        name=_missing[0],
    )
