"""Which examples are which rank's: pure arithmetic."""

from collections.abc import Sequence

from tfdist.data.sharding import share


def part_of(examples: int, global_batch_size: int, rank: int, size: int) -> range:
    """Return which examples are one rank's, if all lie in one row.

    A rank gets as many as it would get of the global batches, so that all ranks have as
    many steps as one process would have; and they are neighbours, so that it
    reads no file of which it needs nothing.

    Args:
        examples: How many there are.
        global_batch_size: Examples of a step of all ranks.
        rank: Whose part.
        size: How many ranks there are.

    Returns:
        Their positions.

    Example:
        >>> [part_of(1001, 64, rank, 3) for rank in range(3)]
        [range(0, 328), range(328, 657), range(657, 1001)]
    """
    batches, rest = divmod(examples, global_batch_size)
    whole = _shares(global_batch_size, size)
    last = _shares(rest, size)
    extra = rest - size * min(whole)
    if extra > 0:
        # Even shares could ask more of a rank than it takes in a step.
        last = []
        for most in whole:
            more = min(most - min(whole), extra)
            extra -= more
            last.append(min(whole) + more)
    counts = [batches * full + short for full, short in zip(whole, last, strict=True)]
    start = sum(counts[:rank])
    return range(start, start + counts[rank])


def pieces_of(
    part: range, lengths: Sequence[int], most: int
) -> list[tuple[int, int, int]]:
    """Return where a part of the examples lies in files.

    Args:
        part: The positions of the examples, over all files.
        lengths: How many examples each file has.
        most: How many examples a piece may have; a longer one is cut, so that several
            can be read at a time.

    Returns:
        Of each piece the number of the file, the first example in it, and how many.

    Example:
        >>> pieces_of(range(3, 9), [4, 0, 6], most=3)
        [(0, 3, 1), (2, 0, 3), (2, 3, 2)]
    """
    pieces = []
    begin = 0
    for number, length in enumerate(lengths):
        start = max(part.start, begin) - begin
        stop = min(part.stop, begin + length) - begin
        pieces += [
            (number, first, min(most, stop - first))
            for first in range(start, stop, most)
        ]
        begin += length
    return pieces


def check_batch(global_batch_size: int, size: int) -> None:
    """Refuse a batch of which a rank would get nothing.

    Args:
        global_batch_size: Examples of a step of all ranks.
        size: How many ranks there are.

    Raises:
        ValueError: If it is smaller than the number of ranks.
    """
    if global_batch_size < size:
        raise ValueError(
            "global_batch_size must be at least the number of ranks. Received: "
            f"global_batch_size={global_batch_size} for {size} ranks. It is what all "
            "ranks together take in a step: multiply what one takes by tfdist.size()."
        )


def check_examples(examples: int, size: int, source: str) -> None:
    """Refuse data of which a rank would get nothing.

    Args:
        examples: How many there are.
        size: How many ranks there are.
        source: Where they are from, to end a sentence.

    Raises:
        ValueError: If there are fewer than ranks.
    """
    if examples < size:
        raise ValueError(
            "Every rank must get at least one example. Received: "
            f"{examples} examples for {size} ranks, from {source}. Start fewer "
            "processes, or see whether all files are there."
        )


def _shares(rows: int, size: int) -> list[int]:
    """Return how many rows each rank gets, if they are shared out evenly."""
    bounds = [share(rows, rank, size) for rank in range(size)]
    return [stop - start for start, stop in bounds]
