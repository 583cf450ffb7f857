"""A function in the tasks of a barrier stage of Spark."""

import base64
import functools
import pickle
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tfdist.launching.function.call import Call, RankEnd
from tfdist.launching.function.worker import Rendezvous, address_on, run_rank

# A task that fails has no value: its end stands in the text of its exception.
_FAILED_END = re.compile(r"<tfdist:([A-Za-z0-9+/=]+)>")


def run_on_spark(call: Call, processes: int) -> RankEnd:
    """Run the processes, and return the end of the one that counts."""
    try:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            "on='spark' needs PySpark, which is not installed here. "
            "Run: pip install 'tfdist[spark]'"
        ) from error
    session = SparkSession.getActiveSession()
    if session is None:
        raise RuntimeError(
            "on='spark' needs the Spark session of this program. Received: none that "
            "is active. Make one first: SparkSession.builder.getOrCreate()"
        )
    tasks = session.sparkContext.parallelize(range(processes), processes).barrier()
    run = functools.partial(_run, call, Rendezvous())
    try:
        return RankEnd.first(tasks.mapPartitions(run).collect())
    except (PySparkException, Py4JJavaError) as error:
        ends = [
            pickle.loads(base64.b64decode(found))
            for found in {*_FAILED_END.findall(str(error))}
        ]
        if not ends:
            raise
        return RankEnd.first(ends)


def _run(call: Call, rendezvous: Rendezvous, _: Iterable[Any]) -> Iterator[RankEnd]:
    """Run a rank in a task."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    task = context.getTaskInfos()[context.partitionId()]
    own = address_on(task.address.rpartition(":")[0])
    addresses = context.allGather(own)
    end = run_rank(call, rendezvous, addresses, own, context.cpus())
    if end.problem:
        # Then Spark ends the other tasks.
        text = base64.b64encode(pickle.dumps(end)).decode()
        raise RuntimeError(f"{end.problem}\n<tfdist:{text}>")
    yield end
