"""Causes that lie in the training: losses, layers, gradients, updates."""

from collections.abc import Sequence

from tfdist.verify.cause import Cause, blame_seeds
from tfdist.verify.compare import combined, ratio, relative_difference
from tfdist.verify.differences import dtype_of
from tfdist.verify.recording import Recording

# From here on two gradients are not the same but for rounding.
_SAME_GRADIENTS = {"float64": 1e-7, "float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}


def cause_of_difference(one: Recording, many: Sequence[Recording]) -> Cause:
    """Find why variables differ although the global batches were the same.

    Args:
        one: What the one process has seen.
        many: What several have, by rank.

    Returns:
        The likely cause; at worst one that says what is ruled out.
    """
    different = [
        name
        for name, value in one.initial.items()
        if name in many[0].initial
        and relative_difference(value, many[0].initial[name]) > 0
    ]
    if different:
        return blame_seeds(many, _other_start(different[0]))
    raw = combined(many, "raw_gradients")
    factor, rest = ratio(one.raw_gradients, raw)
    limit = _SAME_GRADIENTS[dtype_of(one)]
    if rest > limit:
        return _of_forward_pass(many[0], blame_seeds(many, _other_gradients(many[0])))
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
    """Blame what each rank computes from its own rows, if there is such a thing."""
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
