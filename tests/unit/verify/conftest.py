"""Recordings made by hand: one weight, one moment, one metric, 4 rows a step."""

from copy import deepcopy

import numpy as np
import pytest

from tfdist.verify.recording import Batch, Entry, Layer, Recording, digest

ENTRIES = {
    "m/dense/kernel": Entry("weights", "float32"),
    "adam/m_dense_kernel_momentum": Entry("optimizer", "float32"),
    "loss/total": Entry("metrics", "float32", "sum"),
}


def make_recording(rank, rows, fingerprint, kernel):
    """Return what a process has seen; `kernel` is the weight after each step."""
    recording = Recording(
        rank,
        entries=deepcopy(ENTRIES),
        layers=[Layer("m/dense", "Dense", "float32", ["m/dense/kernel"])],
        batches=[Batch(rows, fingerprint, rows), Batch(rows, fingerprint + 1, rows)],
        seeds=["1", "a", "b"],
        initial={"m/dense/kernel": np.array([1.0, 2.0], np.float32)},
        gradients={"m/dense/kernel": np.array([0.5, -1.0], np.float32)},
    )
    for step, value in enumerate(kernel, 1):
        values = {
            "m/dense/kernel": np.array(value, np.float32),
            "adam/m_dense_kernel_momentum": np.array([0.05, -0.1], np.float32),
        }
        if rank:
            values = {name: digest(array) for name, array in values.items()}
        total = np.array(1.5 * step * rows, np.float32)
        recording.states[step] = {**values, "loss/total": total}
    return recording


@pytest.fixture
def runs():
    """Return what one process and two have seen, and they agree."""
    kernel = [[0.9, 2.1], [0.8, 2.2]]
    one = make_recording(0, 4, 30, kernel)
    many = [make_recording(0, 3, 10, kernel), make_recording(1, 1, 20, kernel)]
    # In the second step each has one more: 31 = 11 + 20.
    many[1].batches[1] = Batch(1, 20, 1)
    return one, many


@pytest.fixture
def change():
    """Return a function that changes a variable on all ranks from a step on."""

    def change(many, name, value, *, first_step=1):
        array = np.array(value, np.float32)
        for recording in many:
            for step, state in recording.states.items():
                if step >= first_step:
                    state[name] = digest(array) if recording.rank else array

    return change
