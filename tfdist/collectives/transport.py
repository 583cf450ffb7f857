"""Choice of the transport that TensorFlow's collectives use between GPUs."""

from collections.abc import Sequence


def choose_transport(cards: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return "nccl" or "ring" for the GPUs of each rank, and why not NCCL.

    NCCL joins GPUs if each logical GPU of each rank is a card of its own.

    Args:
        cards: For each rank, a name of the card of each of its logical GPUs.
    """
    owners: dict[str, int] = {}
    for rank, of_rank in enumerate(cards):
        for card in of_rank:
            other = owners.setdefault(card, rank)
            if other == rank and of_rank.count(card) > 1:
                return "ring", f"rank {rank} has split a GPU"
            if other != rank:
                return "ring", f"ranks {other} and {rank} share a GPU"
    without = [rank for rank, of_rank in enumerate(cards) if not of_rank]
    if without and owners:
        return "ring", f"rank {without[0]} has none"
    return ("nccl" if owners else "ring"), ""
