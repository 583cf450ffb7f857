"""Likely causes of a difference between two recorded runs."""

from collections.abc import Iterable, Sequence

from tfdist.first_step.comparison import BETWEEN_ROWS, MEASURED, Cause
from tfdist.verify.compare import (
    Rounding,
    combined,
    ratio,
    relative_difference,
)
from tfdist.verify.recording import Batch, Recording, joined

# The largest relative difference of two gradients that rounding explains.
_SAME_GRADIENTS = {"float64": 1e-7, "float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
_GENERATORS = ("tf.random", "Python's random", "np.random")


def cause_of_data(one: Recording, many: Sequence[Recording]) -> Cause | None:
    """Compare the batches step by step; return None if they are the same."""
    for step, batch in enumerate(one.batches[: many[0].steps]):
        parts = [r.batches[step] for r in many if step < r.steps]
        if len(parts) < len(many):
            break
        cause = _cause_of_batch(step + 1, batch, parts, many)
        if cause is not None:
            return cause
    if any(recording.steps != one.steps for recording in many):
        counts = ", ".join(str(recording.steps) for recording in many)
        return Cause(
            "another number of steps",
            f"One process took {one.steps} steps; the ranks took {counts}.",
            "Let steps_per_epoch and the length of the dataset depend on the global "
            "batch size alone.",
        )
    return None


def _cause_of_batch(
    step: int, batch: Batch, parts: Sequence[Batch], many: Sequence[Recording]
) -> Cause | None:
    """Compare the batch of a step with the parts that the ranks got."""
    whole, rows = joined(parts), parts[0].rows
    is_same = (whole.rows, whole.fingerprint) == (batch.rows, batch.fingerprint)
    # Batches of one distinct row may be the same by chance.
    are_copies = len({p.fingerprint for p in parts}) == 1 and parts[0].distinct > 1
    if are_copies and (many[0].own_datasets or not is_same):
        return Cause(
            "an unsharded dataset",
            f"In step {step} all {len(parts)} ranks were given the same {rows} rows.",
            "In the function given to strategy.distribute_datasets_from_function, call "
            "dataset.shard(context.num_input_pipelines, context.input_pipeline_id) "
            "before batch, and batch by "
            "context.get_per_replica_batch_size(global_batch_size). Or give the whole "
            "dataset to fit: the strategy shards it. What train_on_batch is given must "
            "be each rank's own rows.",
        )
    if whole.rows != batch.rows:
        return Cause(
            "another global batch size",
            f"In step {step} one process had {batch.rows} rows, and {len(parts)} had "
            f"{whole.rows} ({' + '.join(str(part.rows) for part in parts)}).",
            "Give fit, or strategy.experimental_distribute_dataset, the whole dataset "
            "in global batches, on every rank the same, and leave the sharding to the "
            "strategy.",
        )
    if is_same:
        return None
    other = Cause(
        "other data",
        f"In step {step} the {batch.rows} rows of all ranks were not those of one "
        "process.",
        "Read and shuffle the data alike on every rank: give random operations a "
        "seed, do not shard by tfdist.rank() what the strategy shards, and use no "
        "AutoShardPolicy.FILE to compare.",
    )
    return _seeds_or(many, other)


def named(many: Sequence[Recording]) -> bool:
    """Return whether a difference has a cause that no rounding could be."""
    return many[0].first_step is not None or bool(many[0].batch_norms)


def cause_of_difference(
    one: Recording, many: Sequence[Recording], rounding: Rounding
) -> Cause:
    """Return the likely cause of a difference after equal global batches."""
    for name, value in one.initial.items():
        other = many[0].initial.get(name, value)
        if relative_difference(value, other) > 0:
            cause = Cause(
                "initial weights that the seed does not reach",
                f"Before the first step {name} was not the same in both runs.",
                "Draw initial weights with keras.random or keras.initializers, or seed "
                "the generator that the script uses.",
            )
            return _seeds_or(many, cause)
    if many[0].first_step is not None:
        return many[0].first_step
    factor, rest = ratio(one.gradients, combined(many))
    own = max([0.0, *rounding.changes("gradients", 1).values()])
    limit = max(_SAME_GRADIENTS[rounding.dtype], MEASURED * own)
    if rest <= limit < abs(factor - 1) and not many[0].is_keras_step:
        return _not_divided(factor, many)
    if many[0].batch_norms:
        return Cause(
            "batch normalisation that is not synchronised",
            "These layers normalise by the rows of one rank instead of the global "
            f"batch: {some(map(repr, many[0].batch_norms))}.",
            "Make it keras.layers.BatchNormalization(synchronized=True).",
        )
    if max(rest, abs(factor - 1)) <= limit:
        return _own_update(one, rounding)
    evidence = "The first gradients differ, with the same weights and global batch."
    return _seeds_or(many, Cause(BETWEEN_ROWS[0], evidence, BETWEEN_ROWS[1]))


def _own_update(one: Recording, rounding: Rounding) -> Cause:
    """Return the cause of a difference that begins after equal gradients."""
    again = (
        "Run with --float64 to tell rounding from a fault: rounding shrinks a million "
        "times. "
    )
    is_done = one.is_float64_wanted or rounding.dtype == "float64"
    return Cause(
        "an update of its own",
        "The global batches, the initial weights and the gradients of the first step "
        "are the same.",
        f"{'' if is_done else again}Variables that the script assigns in a step, each "
        "rank must assign alike.",
    )


def _not_divided(factor: float, many: Sequence[Recording]) -> Cause:
    """Return the cause of gradients that are a multiple of one process's."""
    return Cause(
        "a loss that is not divided by the global batch size",
        f"In the first step the gradient of {len(many)} processes was {factor:.3g} "
        "times that of one.",
        "In a custom loop sum the losses of the rows and divide by the global batch "
        "size (tf.nn.compute_average_loss). If it divides by a number of replicas, "
        "read strategy.num_replicas_in_sync inside of the step: verify cannot follow "
        "one that was read before.",
    )


def _seeds_or(many: Sequence[Recording], other: Cause) -> Cause:
    """Return a cause in seeds that differ by rank, or else `other`."""
    by_generator = zip(*(recording.seeds for recording in many), strict=False)
    for generator, states in zip(_GENERATORS, by_generator, strict=False):
        if len(set(states)) > 1:
            return Cause(
                "a seed that differs by rank",
                f"{other.evidence} The ranks began to train with different seeds of "
                f"{generator} (by rank: {', '.join(states)}).",
                "Give keras.utils.set_random_seed the same number on every rank: the "
                "strategy lets the ranks draw differently where they must.",
            )
    return other


def some(items: Iterable[str]) -> str:
    """Name at most four items."""
    shown = list(items)
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return f"{', '.join(shown[:4])}{more}"
