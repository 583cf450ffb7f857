"""Arithmetic of the examples that each rank reads."""

from collections.abc import Sequence

from tfdist.data.sharding import share


def part_of(examples: int, global_batch_size: int, rank: int, size: int) -> range:
    """Return the consecutive positions of one rank's examples."""
    # A rank gets as many as it would get from global batches, so that all ranks run
    # equally many steps. Consecutive examples let it open only the files that it needs.
    batches, rest = divmod(examples, global_batch_size)
    whole = _shares(global_batch_size, size)
    last = _shares(rest, size)
    extra = rest - size * min(whole)
    if extra > 0:
        # An even share could exceed what a rank takes in a step.
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
    """Return (file number, first record, count) of the pieces of a part."""
    # No piece is longer than `most`, so that several can be read in parallel.
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
    """Reject a global batch that leaves a rank without examples."""
    if global_batch_size < size:
        raise ValueError(
            "global_batch_size must be at least the number of ranks. Received: "
            f"global_batch_size={global_batch_size} for {size} ranks. It is what all "
            "ranks together take in a step: multiply what one takes by tfdist.size()."
        )


def check_examples(examples: int, size: int, source: str) -> None:
    """Reject data that leaves a rank without examples."""
    if examples < size:
        raise ValueError(
            "Every rank must get at least one example. Received: "
            f"{examples} examples for {size} ranks, from {source}. Start fewer "
            "processes, or see whether all files are there."
        )


def _shares(rows: int, size: int) -> list[int]:
    """Return the number of rows of each rank, divided evenly."""
    bounds = [share(rows, rank, size) for rank in range(size)]
    return [stop - start for start, stop in bounds]
