"""Memory and time of each way to save memory, for a transformer of 100 million weights.

Its job takes turns with one that saves nothing. With more processes than cores it runs
alone, and only bytes count.
"""

import contextlib
import resource

from script import is_program, run_script
from timers import StepTimer, seconds_by_round

from tfdist.benchmarks.figures import medians, ratio
from tfdist.benchmarks.processes import Group, check_at_least, run_program, start
from tfdist.launching.machine import available_cores
from tfdist_cli.table import format_spread, format_table

_BLOCKS, _WIDTH, _HEADS, _WORDS, _LENGTH = 12, 768, 12, 9600, 128
_MICRO_STEPS = 4
_BYTES_OF_MAXRSS_UNIT = 1024
_WAYS = (
    *("none", "shard_optimizer", "gradient_accumulation", "mixed_bfloat16"),
    *("remat_activations", "remat_blocks"),
)


def measure(turn, *, collective, way, rows, steps, repeats):
    """Train the transformer in one way; return bytes of this process and step times."""
    import keras
    import numpy as np

    from tfdist import size
    from tfdist.strategies import AllReduceStrategy

    class BlockTimer(StepTimer, keras.callbacks.Callback):
        pass

    micro_steps = _MICRO_STEPS if way == "gradient_accumulation" else 1
    if way == "mixed_bfloat16":
        keras.mixed_precision.set_global_policy(way)
    strategy = AllReduceStrategy(collective, shard_optimizer=way == "shard_optimizer")
    with strategy.scope():
        model = transformer(way)
        adam = keras.optimizers.Adam(
            1e-4, gradient_accumulation_steps=micro_steps if micro_steps > 1 else None
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(adam, loss, jit_compile=False)
    timer = BlockTimer(turn, steps * micro_steps)
    shape = rows * size() * steps * (repeats + 1), _LENGTH
    words = np.random.default_rng(0).integers(0, _WORDS, shape)
    batch = rows * size() // micro_steps
    model.fit(words, words, batch, verbose=0, shuffle=False, callbacks=[timer])
    kept = [variable._value for variable in adam.variables]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "weight_bytes": sum(w.numpy().nbytes for w in model.trainable_variables),
        "optimizer_bytes": sum(v.numpy().nbytes for v in kept if v is not None),
        "peak_bytes": peak * _BYTES_OF_MAXRSS_UNIT,
        # In the first block TensorFlow traces the step.
        "blocks": [by_update(block, micro_steps) for block in timer.blocks[1:]],
    }


def transformer(way):
    """Make a decoder of Keras's layers that predicts each word."""
    import keras

    layers = keras.layers

    class Block(layers.Layer):
        """Attention, then two dense layers."""

        def build(self, shape):
            self.norms = [layers.LayerNormalization() for _ in range(2)]
            self.attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
            self.inner = layers.Dense(4 * _WIDTH, "gelu")
            self.outer = layers.Dense(_WIDTH)
            self.attention.build(shape, shape)
            for layer in (*self.norms, self.inner):
                layer.build(shape)
            self.outer.build((*shape[:-1], 4 * _WIDTH))

        # Keras can compute a layer again only if its `call` has no `training`.
        def call(self, x):
            y = self.norms[0](x)
            x = x + self.attention(y, y, use_causal_mask=True)
            return x + self.outer(self.inner(self.norms[1](x)))

    keras.utils.set_random_seed(1)
    names = [f"block_{i}" for i in range(_BLOCKS)]
    scope = contextlib.nullcontext()
    if way == "remat_blocks":
        scope = keras.RematScope("list_of_layers", layer_names=names)
    elif way == "remat_activations":
        scope = keras.RematScope("activations")
    words = keras.Input((_LENGTH,), dtype="int32")
    with scope:
        x = layers.Embedding(_WORDS, _WIDTH)(words)
        for name in names:
            x = Block(name=name)(x)
        x = layers.LayerNormalization()(x)
        return keras.Model(words, layers.Dense(_WORDS, dtype="float32")(x))


def by_update(seconds, micro_steps):
    """Return the seconds of each update of a block but the first, of micro-steps."""
    # A block lacks its first micro-step.
    firsts = range(micro_steps - 1, len(seconds), micro_steps)
    return [sum(seconds[first : first + micro_steps]) for first in firsts]


def measure_all(args):
    """Measure a job in the way that was chosen, and beside it one in none."""
    check_at_least(1, np=args.np, repeats=args.repeats)
    check_at_least(2, steps=args.steps)
    check_at_least(_MICRO_STEPS, rows=args.rows)
    settings = {
        "collective": args.collective,
        "rows": args.rows,
        "steps": args.steps,
        "repeats": args.repeats,
    }
    is_timed = args.np <= len(available_cores()) and args.way != "none"
    groups = [
        Group(
            way,
            __file__,
            {**settings, "way": way},
            args.np,
            collective=args.collective,
            shares_cores=True,
        )
        for way in (("none", args.way) if is_timed else (args.way,))
    ]
    jobs = dict(zip([group.name for group in groups], start(groups), strict=True))
    figures = {"processes": args.np, "collective": args.collective}
    figures |= way_figures(jobs)
    return figures, _table(figures)


def way_figures(jobs):
    """Return the largest bytes of a rank by job, and steps against those of "none"."""
    figures = {
        key: {way: max(rank[key] for rank in job) for way, job in jobs.items()}
        for key in ("weight_bytes", "optimizer_bytes", "peak_bytes")
    }
    if len(jobs) == 2:
        rounds = {
            way: seconds_by_round([rank["blocks"] for rank in job])
            for way, job in jobs.items()
        }
        none, other = rounds.values()
        figures["step_seconds"] = medians(rounds)
        figures["step_ratio"] = ratio(other, none)
    return figures


def _table(figures):
    seconds = figures.get("step_seconds", {})
    rows = []
    for way, peak in figures["peak_bytes"].items():
        sizes = figures["weight_bytes"][way], figures["optimizer_bytes"][way], peak
        row = [way, *(f"{size / 2**20:.0f} MiB" for size in sizes), "", ""]
        if way in seconds:
            row[4] = f"{seconds[way]:.2f} s"
            row[5] = "1" if way == "none" else format_spread(figures["step_ratio"])
        rows.append(row)
    where = f"-np {figures['processes']}, {figures['collective']}"
    return format_table([where, "weights", "optimizer", "peak", "step", "ratio"], rows)


if __name__ == "__main__":
    if is_program():
        run_program(measure)
    else:
        run_script(
            __doc__,
            [
                ("-np", 2, "how many processes"),
                ("--way", _WAYS, "how to save memory"),
                ("--rows", 4, "rows of 128 words in a batch of each rank"),
                ("--collective", ("tensorflow", "mpi"), "what joins the processes"),
                ("--steps", 3, "updates of a block, of which the first does not count"),
                ("--repeats", 3, "blocks"),
            ],
            measure_all,
        )
