"""Causes that lie in the data: other rows, other batches, other steps."""

from collections.abc import Sequence

from tfdist.verify.cause import Cause, blame_seeds
from tfdist.verify.fingerprint import joined
from tfdist.verify.recording import Batch, Recording


def cause_of_data(one: Recording, many: Sequence[Recording]) -> Cause | None:
    """Compare what was trained on, step by step.

    Args:
        one: What the one process has seen.
        many: What several have, by rank.

    Returns:
        The cause, None if the global batches were the same.
    """
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
            return blame_seeds(many, _other_data(step + 1, batch))
    if any(recording.steps != one.steps for recording in many):
        return _other_steps(one, many)
    return None


def _are_copies(parts: Sequence[Batch]) -> bool:
    """Say whether all ranks have the same rows, and not by chance."""
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
