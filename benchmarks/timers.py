"""Timers of steps and epochs that wait for the turn of their process."""

import statistics
from time import perf_counter

# TensorFlow traces and connects in the first epoch; caches fill in the second.
WARM_UP_EPOCHS = 2


class StepTimer:
    """A mixin for Keras callbacks that times the steps of a `fit`, a block per turn."""

    def __init__(self, turn, steps):
        super().__init__()
        self.blocks = []
        self._turn = turn
        self._block_steps = steps
        self._last = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        """Wait for the turn before a block."""
        if batch % self._block_steps == 0:
            self._turn.take()
            self.blocks.append([])

    def on_train_batch_end(self, batch, logs=None):
        """Record the time since the previous step's end; pass the turn on if due."""
        # The first step of a block is left out, because the process slept before it.
        place, last = batch % self._block_steps, self._block_steps - 1
        has_gpu = place in (0, last) and self.wait_for_gpus()
        now = perf_counter()
        if place:
            self.blocks[-1].append(now - self._last)
        self._last = now
        if place == last:
            if has_gpu and last:
                # Other steps were launched, not done: each takes the mean.
                self.blocks[-1] = [sum(self.blocks[-1]) / last] * last
            self._turn.pass_on()

    def wait_for_gpus(self):
        """Wait for the steps that were launched; return whether there is a GPU."""
        return False


class EpochMeter:
    """A mixin for Keras callbacks that measures the epochs of a `fit`, one per turn."""

    def __init__(self, turn, read, on_warm=lambda: None):
        super().__init__()
        self._epochs = []
        self._turn = turn
        # Returns the job's processor seconds and bytes sent so far.
        self._read = read
        self._on_warm = on_warm
        self._before = (0.0, 0.0, None)

    @property
    def epochs(self):
        """The cost of each epoch after the warm-up; bytes are None if not counted."""
        return self._epochs[WARM_UP_EPOCHS:]

    def on_epoch_begin(self, epoch, logs=None):
        """Wait for the turn, and read the counters."""
        if epoch == WARM_UP_EPOCHS:
            self._on_warm()
        self._turn.take()
        self._before = (perf_counter(), *self._read())

    def on_epoch_end(self, epoch, logs=None):
        """Read the counters again, and pass the turn on."""
        now = perf_counter()
        processors, sent = self._read()
        started, processors_before, sent_before = self._before
        sent_here = None
        if sent is not None and sent_before is not None:
            sent_here = sent - sent_before
        self._epochs.append(
            {
                "seconds": now - started,
                "processor_seconds": processors - processors_before,
                "sent_bytes": sent_here,
            }
        )
        self._turn.pass_on()


def seconds_by_round(ranks):
    """Return the median step of each block, on the slowest rank."""
    medians = [[statistics.median(block) for block in blocks] for blocks in ranks]
    return [max(of_round) for of_round in zip(*medians, strict=True)]
