"""What goes to the executors, and one sentence where the package is not there.

Spark pickles a source and its reader on the driver and unpickles them on executors, before anything
of this package runs there. So what unpickles them is sent by value.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from pyspark import cloudpickle

from zkconsumer.spark.process_lifecycle import acknowledge


def unpickled(packed: bytes) -> Any:
    """The object that `Pickled` has packed.

    It runs where the package may not be, so it imports what it needs itself. The variable keeps
    Python's trace from the user (`pyspark.util.handle_worker_exception`); the worker ends then.

    Raises:
        ModuleNotFoundError: the package, or what it needs, is not there.
    """
    import os  # noqa: PLC0415
    import pickle  # noqa: PLC0415
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    try:
        kind, state = pickle.loads(packed)
    except ModuleNotFoundError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise ModuleNotFoundError(
            f"an executor cannot read: {error} ({sys.executable} on {socket.gethostname()}): "
            "install zkconsumer[spark] there, let PYSPARK_PYTHON name where it is, or send the "
            "package with the job"
        ) from None
    made: Any = object.__new__(kind)
    made.__setstate__(state)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Pickled:
    """Mixed into what Spark pickles; `__getstate__` says what of it goes along."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called in a task after Spark's command has come, and before its partition has."""
        self.__dict__.update(state)
        acknowledge()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (pickle.dumps((type(self), self.__getstate__())),)
