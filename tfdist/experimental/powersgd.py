"""Low-rank approximations of gradients: less to send on slow networks."""

import math
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.base import Collective
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.gradients.compression import POWERSGD_RANKS
from tfdist.gradients.reducer import GradientReducer
from tfdist.gradients.sparse import DENSE, kind_of

# Smaller matrices are sent whole: they take a slow network no time that matters, and
# what their factors lack slows learning as much as that of large ones.
LEAST_BYTES = 2**17
# The types that TensorFlow can orthogonalize.
_TYPES = ("float32", "float64")


class PowerSGDReducer(GradientReducer):
    """A sum of gradients that sends each matrix as two thin factors; experimental.

    One step of a power iteration per call: with the gradients M of the ranks and the
    right factor Q of the last call, P is the orthogonalized sum of all M Q, the new Q
    is the sum of all transposed M times P, and the result is P times the transposed Q.
    What the result lacks of its own M, each rank adds to its next gradient.

    Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, algorithms 1 and 2.
    """

    def __init__(
        self,
        collective: Collective,
        *,
        bucket_bytes: int | None = None,
        sparse_as_dense: bool = False,
        compression: str = "powersgd",
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        super().__init__(
            collective, bucket_bytes=bucket_bytes, sparse_as_dense=sparse_as_dense
        )
        self._rank = POWERSGD_RANKS[compression]
        self._least_bytes = least_bytes
        self._is_alone = collective.size == 1
        # By the id of the variable.
        self._states: dict[int, _State] = {}

    def reduce(
        self, plan: GradientPlan, name: str, *, beside: Sequence[Any] = ()
    ) -> list[Any]:
        """Sum gradients over ranks, matrices approximately."""
        thin = {
            i: _Approximation(gradient, state)
            for i, (gradient, variable) in enumerate(
                zip(plan.gradients, plan.variables, strict=True)
            )
            if kind_of(gradient) == DENSE
            and (state := self._state_of(variable)) is not None
        }
        sent = [thin[i].left if i in thin else g for i, g in enumerate(plan.gradients)]
        # The factors are small, and every rank needs them for its next step.
        plan = plan._replace(gradients=sent, owners=())
        sums = super().reduce(plan, name, beside=beside)
        rights = [one.project(sums[i]) for i, one in thin.items()]
        totals = super().reduce(plan._replace(gradients=rights), f"{name}/right")
        for (i, one), total in zip(thin.items(), totals, strict=True):
            sums[i] = one.finish(total)
        return sums

    def state(self, variables: Sequence[Any]) -> list[Any]:
        """Return the right factors and residuals of variables, made if they are new."""
        states = [self._state_of(variable) for variable in variables]
        return [v for state in states if state for v in (state.right, state.residual)]

    def _state_of(self, variable: Any) -> "_State | None":
        """Return the state of a matrix that is worth it; otherwise None."""
        dtype = tf.as_dtype(variable.dtype)
        if self._is_alone or dtype.name not in _TYPES:
            return None
        rows, columns = _matrix_shape(variable.shape)
        is_large = rows * columns * dtype.size >= self._least_bytes
        if not is_large or 2 * self._rank * (rows + columns) >= rows * columns:
            return None
        key = id(variable)
        if key not in self._states:
            self._states[key] = _State(variable, rows, columns, self._rank)
            weakref.finalize(variable, self._states.pop, key)
        return self._states[key]


class _State:
    """The right factor of a variable's gradient, and the residual of this rank."""

    def __init__(self, variable: Any, rows: int, columns: int, rank: int) -> None:
        path = getattr(variable, "path", variable.name)
        # Equal on all ranks without a broadcast.
        seed = [zlib.crc32(path.encode()), rank]
        with tf.init_scope():
            start = tf.random.stateless_normal([columns, rank], seed)
            self.right = _variable(start, variable, f"{path}/powersgd_right")
            zeros = tf.zeros([rows, columns])
            self.residual = _variable(zeros, variable, f"{path}/powersgd_residual")


class _Approximation:
    """The approximation of one gradient in one step."""

    def __init__(self, gradient: Any, state: _State) -> None:
        self._shape = tf.shape(gradient)
        self._state = state
        self._before = tf.convert_to_tensor(state.residual)
        self._matrix = self._before + tf.reshape(gradient, state.residual.shape)
        self.left = self._matrix @ tf.convert_to_tensor(state.right)

    def project(self, left: Any) -> Any:
        """Return this rank's right factor, given the sum of the left ones."""
        self._left = _orthogonalized(left)
        self._right = tf.matmul(self._matrix, self._left, transpose_a=True)
        return self._right

    def finish(self, right: Any) -> Any:
        """Return the approximation, given the sum of the right factors."""
        left, state = self._left, self._state
        total = tf.matmul(left, right, transpose_b=True)
        residual = self._matrix - tf.matmul(left, self._right, transpose_b=True)
        # Overflow would stay for ever. The sums are equal on all ranks, so is this.
        is_finite = tf.reduce_all(tf.math.is_finite(total))
        state.residual.assign(tf.where(is_finite, residual, self._before))
        # A column of zeros would stay zero, also where gradients have it again.
        is_used = is_finite & tf.reduce_any(right != 0, axis=0)
        state.right.assign(tf.where(is_used, right, tf.convert_to_tensor(state.right)))
        return tf.reshape(total, self._shape)


def _orthogonalized(matrix: Any) -> Any:
    """Return an orthonormal basis of the columns, zeros for columns without one."""
    # Gram-Schmidt as in the paper: faster than QR for so few columns. Twice, since
    # what rounding leaves of a dependent column is not orthogonal.
    columns: list[Any] = []
    for column in tf.unstack(matrix, axis=1):
        length = tf.norm(column)
        for _ in range(2):
            for other in columns:
                column -= tf.tensordot(other, column, 1) * other
        rest = tf.norm(column)
        # NaN passes, so that loss scaling notices it.
        is_dependent = rest <= 1e-5 * length
        columns.append(tf.where(is_dependent, tf.zeros_like(column), column / rest))
    return tf.stack(columns, axis=1)


def _matrix_shape(shape: Sequence[int | None]) -> tuple[int, int]:
    """Return all axes but the last as one, and the last; zeros for vectors."""
    lengths = [int(length or 0) for length in shape]
    return (math.prod(lengths[:-1]), lengths[-1]) if len(lengths) > 1 else (0, 0)


def _variable(value: Any, like: Any, name: str) -> keras.Variable:
    """Return a variable in the type of another."""
    return keras.Variable(
        tf.cast(value, like.dtype), trainable=False, name=name.replace("/", "_")
    )
