"""Updates in step: each worker has a part of a batch, and the whole is applied once."""

from itertools import pairwise
from typing import Any

from tfdist.data.sharding import cut_rows, rows_of
from tfdist.strategies.parameter_server.engine import Engine
from tfdist.strategies.parameter_server.sending import give_back, work_of
from tfdist.strategies.parameter_server.update import Update


class Together:
    """Lets the workers make each step together.

    Args:
        strategy: The strategy.
        engine: What gives work to the workers; nothing else is under way in it.
    """

    def __init__(self, strategy: Any, engine: Engine) -> None:
        self._strategy = strategy
        self._engine = engine

    def __call__(self, update: Update, batch: Any) -> None:
        """Make a step, and apply it.

        Args:
            update: What applies it.
            batch: Its batch.
        """
        rows = int(rows_of(batch))
        parts = min(self._strategy.workers, rows)
        edges = [rows * i // parts for i in range(parts + 1)]
        works = [
            work_of(
                update, [cut_rows(batch, start, stop)], [[stop - start, rows, i]], 0
            )
            for i, (start, stop) in enumerate(pairwise(edges))
        ]
        for work in works:
            self._engine.give(work)
        while self._engine.take(wait=True) is not None:
            pass
        update([[work.result[0] for work in works]])
        for work in works:
            give_back(update, work)
