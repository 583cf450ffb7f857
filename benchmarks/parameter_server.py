"""`fit` with parameter servers, alone or compared with TensorFlow's own tools.

The jobs take turns: tfdist; TensorFlow's strategy in `fit` of legacy tf-keras, if that
is installed; and a bare loop over `ClusterCoordinator`, without metrics.
"""

from dataclasses import asdict, replace
from importlib.util import find_spec

from script import LEGACY_KERAS, is_program, run_script
from server_jobs import (
    JobSetup,
    job_figures,
    run_task,
    server_rows,
    staleness_figures,
)
from timers import WARM_UP_EPOCHS, EpochMeter

from tfdist.benchmarks.figures import ratio
from tfdist.benchmarks.processes import start
from tfdist_cli.table import format_spread, format_table

_NAMES = {
    "tfdist": "tfdist",
    "tf_keras": "TensorFlow's strategy in tf-keras",
    "loop": "bare loop, same input",
    "reading_loop": "bare loop, workers read",
}
_NO_TF_KERAS = (
    "TensorFlow's own strategy in `fit` was not measured, because tf-keras is not "
    "installed: pip install tf-keras, in the minor version of TensorFlow"
)
_BETA_1, _BETA_2 = 0.9, 0.999


def make_adam(variables):
    """Return an update by Adam that loses no step, and the variable that counts it."""
    # One operation per variable, on its server.
    import tensorflow as tf

    count = tf.Variable(0, dtype=tf.int64, trainable=False)
    slots = [
        [variable, *(tf.Variable(tf.zeros_like(variable)) for _ in range(2))]
        for variable in variables
    ]

    def apply(gradients):
        update = tf.cast(count.assign_add(1, read_value=True), tf.float32)
        powers = tf.pow(_BETA_1, update), tf.pow(_BETA_2, update)
        for (variable, *moments), gradient in zip(slots, gradients, strict=True):
            with tf.device(variable.device):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle,
                    m=moments[0].handle,
                    v=moments[1].handle,
                    beta1_power=powers[0],
                    beta2_power=powers[1],
                    lr=0.001,
                    beta1=_BETA_1,
                    beta2=_BETA_2,
                    epsilon=1e-7,
                    grad=gradient,
                )

    return apply, count


def measure(make_meter, *, baseline, **settings):
    """Train with a baseline, and return the cost of each epoch."""
    import tensorflow as tf

    train = {"tf_keras": _fit, "loop": _loop}[baseline]
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return {"epochs": train(make_meter, strategy, **settings)}


def _fit(make_meter, strategy, *, batch_size, **settings):
    """Train in `fit` of legacy tf-keras, as TensorFlow's documentation shows."""
    import tensorflow as tf
    from models import build_dense, make_rows

    # `tf.keras` is legacy tf-keras with TF_USE_LEGACY_KERAS=1.
    class Meter(EpochMeter, tf.keras.callbacks.Callback):
        pass

    with strategy.scope():
        model = build_dense(tf.keras, "adam", settings["steps_per_execution"])
    meter = make_meter(Meter)
    creator = tf.keras.utils.experimental.DatasetCreator
    model.fit(
        creator(lambda context: make_rows(batch_size)),
        epochs=settings["repeats"] + WARM_UP_EPOCHS,
        steps_per_epoch=settings["steps"],
        callbacks=[meter],
        verbose=0,
    )
    return meter.epochs


def _loop(make_meter, strategy, *, source, batch_size, **settings):
    """Train in a loop over `ClusterCoordinator`, without metrics and lost steps."""
    import keras
    import tensorflow as tf
    from models import build_dense

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_dense(keras)
        weights = [variable.value for variable in model.trainable_variables]
        apply, made = make_adam(weights)
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    def train_on(features, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(features, training=True))
        apply(tape.gradient(loss, weights))

    @tf.function(autograph=False)
    def train(batches):
        for each in batches:
            strategy.run(train_on, each if isinstance(each, tuple) else next(each))

    count, steps = settings["steps_per_execution"], settings["steps"]
    batches = _batches(coordinator, source, batch_size, count)
    meter = make_meter(EpochMeter)
    epochs = settings["repeats"] + WARM_UP_EPOCHS
    for epoch in range(epochs):
        meter.on_epoch_begin(epoch)
        for _ in range(steps // count):
            coordinator.schedule(train, args=(next(batches),))
        coordinator.join()
        meter.on_epoch_end(epoch)
    assert int(made.numpy()) == epochs * steps, made
    return meter.epochs


def _batches(coordinator, source, batch_size, count):
    """Yield the batches of each closure, or iterators for workers to read from."""
    from models import make_rows

    if source == "chief":
        batches = iter(make_rows(batch_size))
        while True:
            yield [next(batches) for _ in range(count)]
    datasets = coordinator.create_per_worker_dataset(lambda: make_rows(batch_size))
    reader = iter(datasets)
    while True:
        yield [reader] * count


def measure_all(args):
    """Measure all jobs with each number of steps per execution."""
    setup = JobSetup(args.workers, args.ps, args.steps, args.repeats, args.input)
    strategy = {"consistency": args.consistency}
    if args.max_staleness:
        strategy["max_staleness"] = args.max_staleness
    figures = []
    for count in map(int, args.steps_per_execution.split(",")):
        jobs = [setup.fit_job(strategy, count)]
        if args.against == "tensorflow":
            jobs += _baselines(setup, count)
        measured = zip(jobs, start(jobs), strict=True)
        reports = {job.name: report for job, [report] in measured}
        own = {"steps_per_execution": count, **speed_figures(args.steps, reports)}
        figures.append(asdict(setup) | strategy | own)
    return figures, _table(figures)


def _baselines(setup, count):
    """Return the jobs of TensorFlow's own tools."""
    sources = {"loop": setup.source}
    if find_spec("tf_keras") is not None:
        sources = {"tf_keras": "workers", **sources}
    if setup.source == "chief":
        sources["reading_loop"] = "workers"
    for name, source in sources.items():
        is_loop = name != "tf_keras"
        job = setup.job(
            name,
            __file__,
            baseline="loop" if is_loop else name,
            source=source,
            steps_per_execution=count,
        )
        yield job if is_loop else replace(job, env=LEGACY_KERAS)


def speed_figures(steps, reports):
    """Return speed and cost of each job, and the ratios of tfdist to the others."""
    # A ratio is taken within each round of turns, which followed each other in seconds.
    # Thrift compares the steps per second of processor time.
    ours, *_ = epochs = {name: one["epochs"] for name, one in reports.items()}

    def against(key):
        seconds = {name: [one[key] for one in each] for name, each in epochs.items()}
        own = seconds.pop(ours)
        return {name: ratio(each, own) for name, each in seconds.items()}

    return {
        "jobs": {name: job_figures(steps, each) for name, each in epochs.items()},
        "speed_against": against("seconds"),
        "thrift_against": against("processor_seconds"),
        "staleness": staleness_figures(reports[ours]["staleness"]),
    }


def _table(figures):
    first = figures[0]
    rows = []
    for job in first["jobs"]:
        each = [column["jobs"][job] for column in figures]
        rows += [[f"{row[0]}: {_NAMES[job]}", *row[1:]] for row in server_rows(each)]
    for job in first["speed_against"]:
        for key in ("speed", "thrift"):
            ratios = [column[f"{key}_against"][job] for column in figures]
            rows.append([f"{key} against: {_NAMES[job]}", *map(format_spread, ratios)])
    missed = [column["staleness"] for column in figures]
    rows.append(
        [
            "updates that a gradient missed: median, 99 %, most",
            *(f"{s['median']}, {s['percentile_99']}, {s['largest']}" for s in missed),
        ]
    )
    reads = "chief reads" if first["source"] == "chief" else "workers read"
    header = [
        f"{first['workers']} workers, {first['ps']} ps, "
        f"{first['consistency']}, {reads}",
        *(f"{column['steps_per_execution']} in one go" for column in figures),
    ]
    table = format_table(header, rows)
    is_missing = "tf_keras" not in first["jobs"] and len(first["jobs"]) > 1
    return f"{table}\n\n{_NO_TF_KERAS}" if is_missing else table


if __name__ == "__main__":
    if is_program():
        run_task(measure)
    else:
        options = [
            ("--workers", 2, "how many workers"),
            ("--ps", 1, "how many servers"),
            ("--against", ("tensorflow", "nothing"), "the tools to compare with"),
            ("--consistency", ("async", "bounded", "sync"), "when updates are applied"),
            ("--max-staleness", 0, "updates that a gradient may miss, if bounded"),
            ("--input", ("chief", "workers"), "the tasks that read the batches"),
            ("--steps-per-execution", "1,8", "batches that a worker trains on at once"),
            ("--steps", 240, "steps of a turn"),
            ("--repeats", 8, "timed turns of each job"),
        ]
        run_script(__doc__, options, measure_all)
