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


def too_old() -> str | None:
    """Return why the installed pyspark cannot use the formats; None if it can.

    The formats need the admission control of Python data sources, which Spark 4.2 has added.
    `zkconsumer.spark.finishing` also runs on earlier releases.
    """
    if find_spec("pyspark.sql.streaming.datasource") is not None:
        return None
    from pyspark import __version__  # noqa: PLC0415 - checking for the module needs no pyspark

    return f"the formats of zkconsumer need pyspark 4.2 or later, and this is pyspark {__version__}"
