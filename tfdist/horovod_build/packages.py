"""Which package of the system holds what a build needs."""

# What is needed: the package of Debian and Ubuntu, and that of Fedora.
_PACKAGES = {
    "c compiler": ("gcc", "gcc"),
    "c++ compiler": ("g++", "gcc-c++"),
    "make": ("make", "make"),
    "mpi": ("libopenmpi-dev openmpi-bin", "openmpi-devel, then: module load mpi"),
}


def how_to_install(what: str) -> str:
    """Say how something is installed on the usual systems.

    Args:
        what: A key of the table, such as "make".

    Returns:
        A sentence.

    Example:
        >>> how_to_install("c++ compiler")
        'Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++.'
    """
    debian, fedora = _PACKAGES[what]
    return f"Debian and Ubuntu: apt-get install {debian}; Fedora: dnf install {fedora}."
