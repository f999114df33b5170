"""Pickles readers for the executors, and raises a clear error if the package is not installed
there.

Spark pickles a source and its reader on the driver and unpickles them on executors before any other
code of this package runs there. So the function that unpickles them is sent by value.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any, TypeAlias

from pyspark import cloudpickle

from zkconsumer.spark.process_lifecycle import acknowledge_received_data

Unpickled: TypeAlias = Any  # Any: the class is known only when it is unpickled


def unpickled(packed: bytes) -> Unpickled:
    """Return the object that `Pickled` packed.

    The function runs where the package may be missing, so it imports everything itself. The
    environment variable suppresses Python's traceback (`pyspark.util.handle_worker_exception`); the
    worker then ends.

    Raises:
        ModuleNotFoundError: the package or one of its dependencies is not installed.
    """
    import os  # noqa: PLC0415 - see above
    import pickle  # noqa: PLC0415 - see above
    import socket  # noqa: PLC0415 - see above
    import sys  # noqa: PLC0415 - see above

    try:
        kind, state = pickle.loads(packed)
    except ModuleNotFoundError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise ModuleNotFoundError(
            f"an executor cannot read: {error} ({sys.executable} on {socket.gethostname()}): "
            "install zkconsumer[spark] there, set PYSPARK_PYTHON to an interpreter that has it, or"
            " send the package with the job"
        ) from None
    made: Unpickled = object.__new__(kind)
    made.__setstate__(state)
    return made


# PySpark's copy of cloudpickle has no types.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Pickled:
    """A mixin for classes that Spark pickles; `__getstate__` returns the state to send."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the state. In a task, Spark calls this after its command has arrived and before
        its partition does.
        """
        self.__dict__.update(state)
        acknowledge_received_data()

    def __reduce__(self) -> tuple[object, ...]:
        return unpickled, (pickle.dumps((type(self), self.__getstate__())),)
