"""Recording of the bits that a training computes, in each part of a batch."""

from collections import Counter
from typing import Any

import tensorflow as tf

from tfdist.compat.keras.hooks import any_hooks_of_model
from tfdist.compat.watching import unseen
from tfdist.verify.recording import Value, batch_of, digest
from tfdist.verify.variables import entries_of, path_of, to_array, to_tensor
from tfdist.verify.watch import Watch

# In the order in which a step computes them: a schedule sets the learning rate, which
# is among the optimizer's variables, before weights follow it.
_ORDER = ("optimizer", "weights", "state", "metrics")


class BitsWatch(Watch):
    """Observer that changes nothing in the script, and keeps digests alone."""

    def __init__(self, rank: int, steps: int) -> None:
        super().__init__(rank, steps)
        self._part: Any = None
        self._calls: Counter[str] = Counter()

    def install(self) -> None:
        """Patch Keras, TensorFlow and the strategy."""
        self._watch_steps()

    def _check(self, model: Any) -> None:
        """Record the arithmetic of the strategy."""
        hooks = any_hooks_of_model(model)
        self.recording.arithmetic = None if hooks is None else hooks.arithmetic

    @unseen
    def _leave(self, layer: Any, outputs: Any) -> None:
        """Record what a layer returns for a part of the batch."""
        super()._leave(layer, outputs)
        if self._step is None or self.recording.arithmetic is None:
            return
        part = any_hooks_of_model(self._step.model).step  # type: ignore[union-attr]
        # Not inside of a loop, such as that of an LSTM, or of a branch.
        if part is None or not part.is_certain:
            return
        if part is not self._part:
            self._part, self._calls = part, Counter()
        path = path_of(layer)
        self._calls[path] += 1
        count = self._calls[path]
        value = Value("output", path if count == 1 else f"{path}#{count}")
        tensors = [to_tensor(t) for t in tf.nest.flatten(outputs) if _is_number(t)]
        # A part without rows computes on a row of another part, whichever is at hand.
        stand_in = part.shard.stand_in[0] if part.shard.stand_in else False

        def take(number: Any, is_empty: Any, *arrays: Any) -> None:
            if not (is_empty or self._has_enough):
                content = b"".join(digest(array).tobytes() for array in arrays)
                self._now()[value._replace(part=int(number))] = content

        tf.numpy_function(take, [part.number, stand_in, *tensors], [])

    def _now(self) -> dict[Value, bytes]:
        """Return the digests of the step that is running."""
        return self.recording.bits.setdefault(self.recording.steps + 1, {})

    def _take_initial(self, optimizer: Any, variables: list[Any]) -> None:
        """Record weights and optimizer before the first update."""
        self.recording.bits[0] = {
            Value(entry.kind, self._names.of(variable, name)): _digest(variable)
            for name, entry, variable in entries_of(None, [], [optimizer], variables)
        }

    def _take(self, parts: Any, entries: Any) -> None:
        """Record the digests of a step, unless there are enough steps."""
        if self._has_enough:
            return
        leaves, own, gradients, values = parts
        recording, bits = self.recording, self._now()
        if recording.arithmetic is not None:
            # In the order of the backward pass. Without virtual ranks, the optimizer is
            # given the gradients of one rank's rows.
            for name, array in reversed(gradients.items()):
                bits[Value("gradient", name)] = digest(array).tobytes()
        pairs = [*zip(entries, values, strict=True)]
        for (name, entry), array in sorted(pairs, key=_position):
            # Without virtual ranks, metrics are sums over one rank's rows.
            if entry.kind != "metrics" or recording.arithmetic is not None:
                bits[Value(entry.kind, name)] = digest(array).tobytes()
        recording.entries.update(entries)
        recording.batches.append(batch_of(leaves, int(own[0]) if own else None))


def _position(pair: Any) -> int:
    """Return where in a step a variable gets its value."""
    (_, entry), _ = pair
    return _ORDER.index(entry.kind)


def _digest(variable: Any) -> bytes:
    """Return the digest of a variable's current value."""
    content: bytes = digest(to_array(variable)).tobytes()
    return content


def _is_number(value: Any) -> bool:
    """Return whether an output of a layer is a dense tensor of numbers."""
    if not isinstance(value, tf.Tensor):
        return False
    return bool(value.dtype.is_floating or value.dtype.is_integer)
