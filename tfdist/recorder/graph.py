"""Flight recorder of a rank: graphs note by themselves when collectives begin and end.

Operations of TensorFlow write into the memory of a variable, which takes some 10 us for
each collective and no lock of Python. If the job has a file for it, the memory is that
of the file, so that the record survives SIGKILL.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfdist.cluster.launcher import Launcher
from tfdist.compat.patching import holding
from tfdist.compat.tensorflow import is_deterministic, run_independently
from tfdist.recorder.ring import (
    GRAPH_ROWS,
    INPUT,
    KINDS,
    RING_BYTES,
    ROW,
    ROWS,
    STATE,
    WAITS_SINCE,
    Flight,
    create_file,
)

_Result = TypeVar("_Result")

_COLUMNS = ROW.size // 8
_END = _COLUMNS - 1
_MAP_FIXED = 0x10
_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE


class Recorder(Flight):
    """Flight record of this rank, by operations of graphs and by Python."""

    def __init__(self, rank: int, size: int) -> None:
        file = create_file(rank, size, Launcher())
        page_rows = mmap.PAGESIZE // ROW.size
        with tf.init_scope(), tf.device("CPU:0"):
            rows = tf.zeros([ROWS + page_rows, _COLUMNS], tf.float64)
            address = np.asarray(memoryview(rows)).ctypes.data
            self._variable = tf.Variable(rows, trainable=False, name="flight")
            self._count = tf.Variable(1, trainable=False, dtype=tf.int64, name="count")
        # The variable then has the memory alone, and TensorFlow writes in place.
        del rows
        # Only whole pages can be those of the file.
        self._first = -address % mmap.PAGESIZE // ROW.size
        self._address = address + self._first * ROW.size
        if file is not None:
            _map(self._address, mmap.MAP_SHARED, file)
        memory = (ctypes.c_byte * RING_BYTES).from_address(self._address)
        super().__init__(memoryview(memory).cast("B"), file)
        self._is_on_gpu = bool(tf.config.list_logical_devices("GPU"))
        # The kind and the number of the step that is being traced.
        self._step: tuple[int, Any] = (0, 0.0)
        with tf.init_scope():
            self._set(self._first + STATE, WAITS_SINCE, 1.0)
        assert any(self._memory[STATE * ROW.size :]), "TensorFlow writes elsewhere."

    @contextmanager
    def step(self, kind: str, data: Any) -> Iterator[Callable[[Any], None]]:
        """Number a step, which begins once its data is there.

        Yields a function that gets the outputs.
        """
        if tf.executing_eagerly():
            self.note_input(kind)
        if tf.executing_eagerly() or is_deterministic():
            # TensorFlow forbids deterministic graphs to read the clock.
            yield lambda outputs: None
            return
        number, state = KINDS.index(kind), self._first + STATE
        with _after(data):
            row = tf.gather(self._variable, state)
            now = tf.timestamp()
        with _after(now):
            write = self._set(state, number, row[number] + 1.0)
            with tf.control_dependencies([write]):
                step = number, tf.identity(row[number] + 1.0)
            self._write(INPUT, 0, step, row[WAITS_SINCE], now)
        with holding(self, "_step", step):
            yield self._end_step

    @property
    def step_number(self) -> Any:
        """The number of the step that is being traced, once its state says so."""
        return self._step[1]

    def _end_step(self, outputs: Any) -> None:
        """Note that the next step of a loop waits for its input."""
        if self._is_on_gpu:
            # The host would wait until the GPU has ended the step; see `traced`.
            return
        with _after(outputs):
            self._set(self._first + STATE, WAITS_SINCE, tf.timestamp())

    def traced(
        self, what: str, inputs: Sequence[Any], op: Callable[[], _Result]
    ) -> _Result:
        """Add a collective to a graph, with operations that note when it runs."""
        self.plan.append(what)
        if is_deterministic():
            return op()
        with _after(inputs):
            size_bytes = sum(_size_bytes(tensor) for tensor in inputs)
            begin = tf.timestamp()
            row, write = self._write(what, size_bytes, self._step, begin, 0.0)
        result = op()
        # The write of the whole row must not come later.
        with _after(result), tf.control_dependencies([write]):
            end = tf.timestamp()
            self._set(row, _END, end)
            if self._is_on_gpu and self._step[0]:
                # From here the host runs ahead, up to the input of the next step.
                # The last collective to end may not be the last to write.
                latest = tf.raw_ops.ResourceScatterNdMax
                self._set(self._first + STATE, WAITS_SINCE, end, latest)
        return result

    def close(self, how: str) -> None:
        """Note how the process ends, and give the pages of the file back."""
        super().close(how)
        if self._file is not None:
            # TensorFlow may use the memory for something else now.
            kept = bytes(self._memory)
            _map(self._address, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
            self._memory[:] = kept

    def _write(
        self, name: str, size_bytes: int, step: tuple[int, Any], begin: Any, end: Any
    ) -> tuple[Any, Any]:
        """Write the row of an entry; return its position, and the operation."""
        count = tf.raw_ops.ResourceCountUpTo(
            resource=self._count.handle, limit=2**62, T=tf.int64
        )
        run_independently(count.op)
        fields = [count, self.number_of(name), size_bytes, *step, begin, 0.0, end]
        row = self._first + count % GRAPH_ROWS
        write = tf.raw_ops.ResourceScatterUpdate(
            resource=self._variable.handle,
            indices=row,
            updates=tf.stack([_float(field) for field in fields]),
        )
        run_independently(write)
        return row, write

    def _set(
        self,
        row: Any,
        column: int,
        value: Any,
        update: Callable[..., Any] = tf.raw_ops.ResourceScatterNdUpdate,
    ) -> Any:
        """Write one number of a row; return the operation."""
        write = update(
            ref=self._variable.handle,
            indices=[[tf.cast(row, tf.int64), column]],
            updates=[_float(value)],
        )
        if not tf.executing_eagerly():
            run_independently(write)
        return write


def _size_bytes(tensor: Any) -> Any:
    """Return the bytes of a tensor; a tensor if they are known only when it runs."""
    elements = tensor.shape.num_elements()
    elements = tf.size(tensor, tf.int64) if elements is None else elements
    return elements * tensor.dtype.size


def _float(value: Any) -> Any:
    """Convert a number or a scalar to float64."""
    # TensorFlow crashes if an operation on a variable gets another type.
    is_tensor = tf.is_tensor(value)
    return tf.cast(value, tf.float64) if is_tensor else tf.constant(value, tf.float64)


@contextmanager
def _after(values: Any) -> Iterator[None]:
    """Add operations on the CPU, outside of XLA's code, that wait for tensors."""
    leaves = tf.nest.flatten(values, expand_composites=True)
    with (
        tf.xla.experimental.jit_scope(compile_ops=False),
        tf.device("CPU:0"),
        tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]),
    ):
        yield


def _map(address: int, flags: int, file: int) -> None:
    """Map a file, or new memory with -1, in place of pages of this process."""
    place = ctypes.CDLL(None, use_errno=True).mmap
    size, number, position = ctypes.c_size_t, ctypes.c_int, ctypes.c_long
    place.argtypes = [ctypes.c_void_p, size, number, number, number, position]
    place.restype = ctypes.c_void_p
    if place(address, RING_BYTES, _WRITABLE, flags | _MAP_FIXED, file, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "the flight record")
