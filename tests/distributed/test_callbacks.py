"""The callbacks in real processes: alone and together, in two fits, against NumPy.

What a `fit` must end with is worked out here by hand, with the formulas of the papers
and of Horovod; nothing of tfdist is used for it. The fits are in `callback_fits`.
"""

import functools

import numpy as np
import pytest
from callback_fits import (
    DECAY,
    DECIDED_RATE,
    EPOCHS,
    JOINT,
    MOMENTUM,
    ORDERS,
    OWN,
    RATE,
    RATE_OF_ROOT,
    START,
    VALIDATION_ROWS,
    WARMUP_EPOCHS,
    data,
    order_of,
    run_under_strategy,
    run_without_scope,
)
from horovod_jobs import run

import tfdist

SECONDS = 1200
HOROVOD = "horovod"


@pytest.fixture(scope="module")
def under_strategy(tmp_path_factory):
    """Return a function of the number of processes: what each rank ended with."""

    @functools.cache
    def ended(size):
        folder = tmp_path_factory.mktemp("runs")
        values = tfdist.testing.cluster(
            run_under_strategy,
            size=size,
            args=(str(folder),),
            timeout_seconds=SECONDS,
        ).values
        return values, names_in(folder)

    return ended


@pytest.fixture(scope="module")
def without_scope(tmp_path_factory):
    """The same for two processes of Horovod, with `tfdist.horovod`."""
    folder = tmp_path_factory.mktemp("runs")
    values = run(run_without_scope, args=(str(folder),), timeout_seconds=SECONDS)
    return values, names_in(folder)


def names_in(folder):
    """Return the names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(
    params=[
        2,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(
            HOROVOD, marks=[pytest.mark.requires("horovodrun"), pytest.mark.slow]
        ),
    ]
)
def job(request):
    """How the processes train, and what they ended with."""
    if request.param == HOROVOD:
        return Job(2, True, *request.getfixturevalue("without_scope"))
    ended = request.getfixturevalue("under_strategy")(request.param)
    return Job(request.param, False, *ended)


class Job:
    """Results of the processes by rank and case, and the rows that they had."""

    def __init__(self, size, has_own, values, files):
        self.size = size
        # Whether each rank has rows and metrics of its own, without a strategy.
        self.has_own = has_own
        self.values = values
        self.files = files
        self.batches = OWN if has_own else JOINT
        self.steps = self.batches.steps
        parts = range(len(self.batches.rows))
        self.parts = [data(part, self.batches) for part in parts]
        # The epoch of each step, with the part of it that is done.
        self.epochs = np.add.outer(
            np.arange(EPOCHS), np.arange(self.steps) / self.steps
        )

    def constant(self, rate):
        """Return the same rate for all steps."""
        return np.full_like(self.epochs, rate)

    @property
    def rows_trained(self):
        """How many rows each rank trains on in an epoch."""
        if self.has_own:
            return list(self.batches.rows)
        full, rest = divmod(self.batches.rows[0], self.batches.size)
        return full * shares(self.batches.size, self.size) + shares(rest, self.size)

    @property
    def rows_validated(self):
        """How many rows each rank evaluates."""
        if self.has_own:
            return [VALIDATION_ROWS + rank for rank in range(self.size)]
        return shares(VALIDATION_ROWS, self.size)

    @property
    def rates_of_examples(self):
        """The examples of all ranks in a second, by epoch: a step takes a second."""
        ends = np.arange(1, self.steps + 1) * self.batches.size
        done = sum(np.minimum(ends, rows) for rows in self.batches.rows)
        # Of the first epoch two steps are left out, of each other one.
        first = (done[-1] - done[1]) / (self.steps - 2)
        return [first, *[(done[-1] - done[0]) / (self.steps - 1)] * (EPOCHS - 1)]


def shares(rows, size):
    """Return how many rows of a batch each rank gets."""
    return np.diff([rows * rank // size for rank in range(size + 1)])


class Reference:
    """SGD with momentum in NumPy, of all ranks together."""

    def __init__(self, job, is_corrected):
        # `is_corrected`: the velocity follows the rate, as in section 3 of Goyal et al.
        self.batches = job.batches
        self.parts = job.parts
        self.is_corrected = is_corrected
        self.weights = np.array(START).reshape(2, 1)
        self.velocity = np.zeros((2, 1))
        self.rate = RATE

    def fit(self, rates):
        """Train with the rates of all steps; return both losses by epoch and part."""
        losses, validated = [], []
        for of_epoch in rates:
            steps = [self._step(*step) for step in enumerate(of_epoch)]
            parts = zip(*steps, strict=True)
            losses.append([np.concatenate(errors).mean() for errors in parts])
            validated.append(
                [
                    self._errors(x, y, slice(VALIDATION_ROWS + part)).mean()
                    for part, (x, y) in enumerate(self.parts)
                ]
            )
        return np.array(losses), np.array(validated)

    def _step(self, step, rate):
        """Make a step; return the squared error of each row before it, by part."""
        start = step * self.batches.size
        rows = slice(start, start + self.batches.size)
        errors = [self._errors(x, y, rows) for x, y in self.parts]
        gradient = np.mean([self._gradient(x[rows], y[rows]) for x, y in self.parts], 0)
        ratio = rate / self.rate if self.is_corrected else 1.0
        self.velocity = MOMENTUM * ratio * self.velocity - rate * gradient
        self.weights = self.weights + self.velocity
        self.rate = rate
        return errors

    def _errors(self, x, y, rows):
        return ((x[rows] @ self.weights - y[rows]) ** 2).ravel()

    def _gradient(self, x, y):
        return 2 * x.T @ (x @ self.weights - y) / len(x)


def check(job, case, *rates, is_corrected=True, means=None, prepare=None):
    """Compare the weights and the losses of both fits with the reference."""
    # `means`: the weight of each rank in the means of losses and validation losses.
    reference = Reference(job, is_corrected)
    fits = list(zip(*(by_case[case] for by_case in job.values), strict=True))
    for ranks, of_fit in zip(fits, (rates[0], rates[-1]), strict=True):
        if prepare is not None:
            prepare(reference)
        losses = reference.fit(of_fit)
        for rank, fit in enumerate(ranks):
            close(fit.weights, reference.weights.ravel())
            assert fit.weights == ranks[0].weights
            for name, loss, weights in zip(
                ("loss", "val_loss"), losses, means or (None, None), strict=True
            ):
                if weights is not None and job.has_own:
                    close(fit.logs[name], np.average(loss, axis=1, weights=weights))
                elif name in fit.logs:
                    close(fit.logs[name], loss[:, rank if job.has_own else 0])
    return fits


def close(found, expected):
    """Compare numbers in float64."""
    np.testing.assert_allclose(found, expected, rtol=1e-9)


# Each callback alone.


def change_root(reference):
    """Change what the last rank has, and so all ranks, before a fit."""
    reference.weights = 2 * reference.weights
    reference.rate = RATE_OF_ROOT


def test_metric_average_weights_ranks_by_their_examples(job):
    means = job.rows_trained, job.rows_validated
    own = np.arange(job.size) ** 2
    for ranks in check(job, "average", job.constant(RATE), means=means):
        for fit in ranks:
            close(fit.logs["own"], [np.average(own, weights=means[0])] * EPOCHS)
            validated = np.average(10 * own, weights=means[1])
            close(fit.logs["val_own"], [validated] * EPOCHS)


def test_throughput_counts_the_examples_of_all_ranks(job):
    rates = np.array(job.rates_of_examples)
    shown = in_three_digits(rates)
    for ranks in check(job, "throughput", job.constant(RATE)):
        for fit in ranks:
            close(fit.logs["examples_per_second"], shown)
            close(fit.logs["tokens_per_second"], in_three_digits(3 * rates))
            efficiency = in_three_digits(rates / 2 / job.size)
            close(fit.logs["scaling_efficiency"], efficiency)
        chief = ranks[0]
        assert [fit.printed for fit in ranks] == [[]] * job.size
        written = chief.noted
        close([epoch.examples_per_second for epoch in written.epochs], rates)
        assert written.processes == job.size
        assert written.global_batch_size == job.batches.size * len(job.parts)
    # Of the others, each was given a file of its own.
    assert job.files == ["run.json"]


def in_three_digits(figures):
    """Return the figures as `Throughput` logs them."""
    return [float(f"{figure:.3g}") for figure in figures]


def warmup(job):
    """Return the multiplier of each step of the warm-up by Horovod's formula."""
    done = job.epochs + 1 / job.steps
    growing = (done * (job.size - 1) / WARMUP_EPOCHS + 1) / job.size
    return np.where(job.epochs < WARMUP_EPOCHS, growing, 1.0)


def test_rank_zero_decides_for_all(job):
    later = job.constant(DECIDED_RATE)
    first = later.copy()
    # Without a strategy the others learn of it at the end of the epoch.
    first[0, : job.steps if job.has_own else 2] = RATE
    fits = check(job, "rank zero", first, later, is_corrected=False)
    for done, (chief, *others) in enumerate(fits, start=1):
        assert chief.noted == [*range(EPOCHS)] * done
        assert [fit.noted for fit in others] == [[]] * len(others)


# All together.


@pytest.mark.parametrize("number", ORDERS)
def test_together_they_do_the_same_in_any_order(job, number):
    order = order_of(number)
    scaled = RATE_OF_ROOT * job.size * warmup(job)
    scaled[WARMUP_EPOCHS:] *= DECAY
    # What is set between two fits counts as scaled.
    rates = scaled, scaled / job.size
    means = job.rows_trained, None
    own = np.arange(job.size) ** 2
    if order.index("own") < order.index("average"):
        own = np.full(job.size, np.average(own, weights=job.rows_trained))
    examples = in_three_digits(job.rates_of_examples)
    fits = check(job, f"order {number}", *rates, means=means, prepare=change_root)
    for done, (of_fit, ranks) in enumerate(zip(rates, fits, strict=True), start=1):
        for fit, own_of_rank in zip(ranks, own, strict=True):
            close(fit.logs["learning_rate"], of_fit[:, -1])
            close(fit.logs["own"], own_of_rank)
            close(fit.logs["examples_per_second"], examples)
        chief, *others = ranks
        assert chief.printed == lines(job, order, of_fit)
        assert chief.noted == [*range(EPOCHS)] * done
        assert [fit.printed + fit.noted for fit in others] == [[]] * len(others)


def lines(job, order, rates):
    """Return what the chief prints, in the order of the callbacks."""
    printed = []
    for epoch in range(EPOCHS):
        rate = f"{rates[epoch, -1]:g}"
        said = {"print": f"epoch {epoch + 1}: learning rate {rate}"}
        if epoch == WARMUP_EPOCHS - 1:
            ended = "the warm-up has ended, learning rate"
            said["warm-up"] = f"epoch {epoch + 1}: {ended} {rate}"
        printed += [said[name] for name in order if name in said]
    return printed
