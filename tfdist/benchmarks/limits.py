"""What no benchmark can measure with, refused before anything is started."""


def check_size(size: int) -> None:
    """Refuse a single process, which has nobody to talk to.

    Args:
        size: How many processes.

    Raises:
        ValueError: If they are fewer than 2.
    """
    if size < 2:
        raise ValueError(
            f"size (-np) must be at least 2. Received: size={size}. "
            "One process alone is measured beside them in any case."
        )


def check_at_least(least: int, **arguments: int) -> None:
    """Refuse arguments with which nothing would be measured.

    Args:
        least: The smallest number that makes sense.
        **arguments: The numbers, by their names.

    Raises:
        ValueError: If one is smaller.
    """
    for name, value in arguments.items():
        if value < least:
            raise ValueError(
                f"{name} must be at least {least}. Received: {name}={value}. "
                "Leave it out for the default."
            )
