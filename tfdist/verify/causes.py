"""Likely causes of a difference between two recorded runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.verify.compare import combined, dtype_of, ratio, relative_difference
from tfdist.verify.recording import Batch, Recording, joined

# The largest relative difference of two gradients that rounding explains.
_SAME_GRADIENTS = {"float64": 1e-7, "float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}


@dataclass(frozen=True)
class Cause:
    """Likely cause of a difference, its evidence, and the fix in the script."""

    name: str
    evidence: str
    fix: str


def cause_of_data(one: Recording, many: Sequence[Recording]) -> Cause | None:
    """Compare the batches step by step; return None if they are the same."""
    for step, batch in enumerate(one.batches[: many[0].steps]):
        parts = [r.batches[step] for r in many if step < r.steps]
        if len(parts) < len(many):
            break
        whole = joined(parts)
        is_same = (whole.rows, whole.fingerprint) == (batch.rows, batch.fingerprint)
        if _are_copies(parts) and (many[0].own_datasets or not is_same):
            return _unsharded(step + 1, parts)
        if whole.rows != batch.rows:
            return _other_rows(step + 1, batch, whole, parts)
        if whole.fingerprint != batch.fingerprint:
            return _seeds_or(many, _other_data(step + 1, batch))
    if any(recording.steps != one.steps for recording in many):
        return _other_steps(one, many)
    return None


def _are_copies(parts: Sequence[Batch]) -> bool:
    """Return whether all ranks have the same rows, and not by chance."""
    first = parts[0]
    same = all(part.fingerprint == first.fingerprint for part in parts)
    return len(parts) > 1 and same and first.distinct > 1


def _unsharded(step: int, parts: Sequence[Batch]) -> Cause:
    return Cause(
        "an unsharded dataset",
        f"In step {step} all {len(parts)} ranks were given the same {parts[0].rows} "
        "rows.",
        "In the function given to strategy.distribute_datasets_from_function, call "
        "dataset.shard(context.num_input_pipelines, context.input_pipeline_id) before "
        "batch, and batch by context.get_per_replica_batch_size(global_batch_size). Or "
        "give the whole dataset to fit: the strategy shards it. What train_on_batch is "
        "given must be each rank's own rows.",
    )


def _other_rows(step: int, one: Batch, whole: Batch, parts: Sequence[Batch]) -> Cause:
    rows = " + ".join(str(part.rows) for part in parts)
    return Cause(
        "another global batch size",
        f"In step {step} one process had {one.rows} rows, and {len(parts)} had "
        f"{whole.rows} ({rows}).",
        "Give fit, or strategy.experimental_distribute_dataset, the whole dataset in "
        "global batches, on every rank the same, and leave the sharding to the "
        "strategy.",
    )


def _other_data(step: int, batch: Batch) -> Cause:
    return Cause(
        "other data",
        f"In step {step} the {batch.rows} rows of all ranks were not those of one "
        "process.",
        "Read and shuffle the data alike on every rank: give random operations a seed, "
        "do not shard by tfdist.rank() what the strategy shards, and use no "
        "AutoShardPolicy.FILE to compare.",
    )


def _other_steps(one: Recording, many: Sequence[Recording]) -> Cause:
    counts = ", ".join(str(recording.steps) for recording in many)
    return Cause(
        "another number of steps",
        f"One process took {one.steps} steps; the ranks took {counts}.",
        "Let steps_per_epoch and the length of the dataset depend on the global batch "
        "size alone.",
    )


def cause_of_difference(one: Recording, many: Sequence[Recording]) -> Cause:
    """Return the likely cause of different variables after equal global batches."""
    different = [
        name
        for name, value in one.initial.items()
        if name in many[0].initial
        and relative_difference(value, many[0].initial[name]) > 0
    ]
    if different:
        return _seeds_or(many, _other_start(different[0]))
    raw = combined(many, "raw_gradients")
    factor, rest = ratio(one.raw_gradients, raw)
    limit = _SAME_GRADIENTS[dtype_of(one)]
    if rest > limit:
        return _of_forward_pass(many[0], _seeds_or(many, _other_gradients(many[0])))
    if abs(factor - 1) > limit:
        return _not_averaged(factor, one, many)
    names = [n for n in raw if n in one.raw_gradients]
    apart = max(
        (relative_difference(one.raw_gradients[n], raw[n]) for n in names), default=0.0
    )
    factor, rest = ratio(one.applied_gradients, combined(many, "applied_gradients"))
    if names and (rest > max(limit, 10 * apart) or abs(factor - 1) > limit):
        return _changed_by_hand()
    return _of_forward_pass(many[0], _later(many[0]))


def _other_start(name: str) -> Cause:
    return Cause(
        "initial weights that the seed does not reach",
        f"Before the first step {name} was not the same in both runs.",
        "Draw initial weights with keras.random or keras.initializers, or seed the "
        "generator that the script uses.",
    )


def _of_forward_pass(seen: Recording, otherwise: Cause) -> Cause:
    """Return a cause in each rank's own computation, or else `otherwise`."""
    if seen.draws:
        return Cause(
            "random numbers in a step",
            f"In the training step {seen.draws[0]} draws random numbers, others on "
            "each rank than one process does.",
            "Nothing is wrong if that is meant, as with dropout; to verify the rest, "
            "switch it off for this run. Draw with keras.random and a "
            "keras.random.SeedGenerator to have the ranks draw differently.",
        )
    if seen.batch_norms:
        some = ", ".join(repr(name) for name in seen.batch_norms[:3])
        more = len(seen.batch_norms) - 3
        return Cause(
            "batch normalisation that is not synchronised",
            "These layers normalise by the rows of one rank instead of the global "
            f"batch: {some}{f' and {more} more' if more > 0 else ''}.",
            "Make it keras.layers.BatchNormalization(synchronized=True).",
        )
    return otherwise


def _not_averaged(factor: float, one: Recording, many: Sequence[Recording]) -> Cause:
    size = len(many)
    times = f"{factor:.3g} times"
    if not many[0].is_keras_step:
        return Cause(
            "a loss that is not divided by the global batch size",
            f"In the first step the gradients of {size} processes added up to {times} "
            "that of one.",
            "In a custom loop sum the losses of the rows and divide by the global "
            "batch size (tf.nn.compute_average_loss). If it divides by a number of "
            "replicas, read strategy.num_replicas_in_sync inside of the step: verify "
            "cannot follow one that was read before.",
        )
    method = many[0].custom_steps[:1]
    where = f" of the script's own {method[0]}" if method else ""
    losses = [one.losses[0], *(recording.losses[0] for recording in many)]
    values = ", ".join("unknown" if loss is None else f"{loss:.4g}" for loss in losses)
    return Cause(
        "a custom loss that does not average",
        f"In the first step the gradient of {size} processes was {times} that of one, "
        f"as if the loss{where} were a sum over the batch, or divided by the number of "
        f"processes. The loss of one process, and then of each rank: {values}.",
        "Return one loss for each row, or their mean, never their sum, and do not "
        "divide by the number of processes: the strategy weighs the ranks.",
    )


def _changed_by_hand() -> Cause:
    return Cause(
        "gradients that are clipped, or changed, before they are summed over the ranks",
        "In the first step the gradients that tape.gradient returned agree, those that "
        "the optimizer was given do not.",
        "Give the optimizer the gradients as they are, and let it clip after the sum: "
        "keras.optimizers.Adam(clipnorm=..., global_clipnorm=... or clipvalue=...).",
    )


def _other_gradients(seen: Recording) -> Cause:
    own = " and ".join(seen.custom_steps)
    suspect = f"the script's own {own}" if own else "the loss, or a layer of the script"
    return Cause(
        "something computed over all rows of a batch",
        "The first gradients differ, with the same weights, the same global batch and "
        "no random numbers.",
        f"Look at {suspect}: a mean over rows is the same however the rows are shared "
        "out; a sum, a ratio, a maximum or pairs of rows are not.",
    )


def _later(seen: Recording) -> Cause:
    own = " and ".join(seen.custom_steps)
    what = f" Look at the script's own {own}." if own else ""
    return Cause(
        "an update of its own",
        "The global batches, the initial weights and the gradients of the first step "
        "are the same.",
        "Run with --float64 to tell rounding from a fault: rounding shrinks a million "
        f"times.{what} Variables that the script assigns in a step, each rank must "
        "assign alike.",
    )


def _seeds_or(many: Sequence[Recording], other: Cause) -> Cause:
    """Return a cause in seeds that differ by rank, or else `other`."""
    for generator, states in zip(
        ("tf.random", "Python's random", "np.random"),
        zip(*(recording.seeds for recording in many), strict=False),
        strict=False,
    ):
        if len(set(states)) > 1:
            shown = (
                f" (by rank: {', '.join(states)})" if generator == "tf.random" else ""
            )
            return Cause(
                "a seed that differs by rank",
                f"{other.evidence} The ranks began to train with different seeds of "
                f"{generator}{shown}.",
                "Give keras.utils.set_random_seed the same number on every rank: the "
                "strategy lets the ranks draw differently where they must.",
            )
    return other
