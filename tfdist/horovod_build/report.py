"""What is built into the installed Horovod, and whether it can be used here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shutil import which

from tfdist.horovod_build.errors import BuildError
from tfdist.horovod_build.installed import Installed, find_installed
from tfdist.horovod_build.tensorflow import TensorFlow, find_tensorflow, same_version
from tfdist.horovod_build.trial import PARTS, probe, try_all_reduce

_INSTALL = "Run: tfdist horovod install"
_FRAMEWORKS = ("TensorFlow", "PyTorch", "MXNet")
_CONTROLLERS = ("gloo", "mpi")
# MPI's launcher is another package than what Horovod is linked with.
_NO_MPIRUN = "no mpirun on PATH, which starts processes for it"


@dataclass(frozen=True)
class Report:
    """What was found out about the installed Horovod.

    Args:
        horovod: What is installed; None if nothing is.
        tensorflow: The TensorFlow beside it; None if there is none.
        parts: What is built in, as `probe` returns it; None if it does not load.
        mpirun: MPI's launcher; None if there is none on PATH.
        controller: By which of its parts two processes have added up; None if they
            have not.
        problem: What stands in the way of using it, and what to do; None if nothing.
    """

    horovod: Installed | None
    tensorflow: TensorFlow | None = None
    parts: tuple[str, ...] | None = None
    mpirun: str | None = None
    controller: str | None = None
    problem: str | None = None

    def lines(self) -> list[str]:
        """Write the report for people.

        Returns:
            The lines, without the problem.
        """
        if self.horovod is None:
            return []
        here = "none" if self.tensorflow is None else self.tensorflow.version
        rows = [
            (f"Horovod {self.horovod.version}", str(self.horovod.folder)),
            ("built for", f"TensorFlow {self.horovod.built_for or 'none'}"),
            ("installed", f"TensorFlow {here}"),
            ("frameworks", _marks(_FRAMEWORKS, self.horovod.frameworks)),
        ]
        if self.parts is not None:
            built = [PARTS[part] for part in self.parts]
            controllers = _marks([PARTS[part] for part in _CONTROLLERS], built)
            rows.append(("controllers", controllers))
            rows.append(("built in", _marks(list(PARTS.values()), built)))
            if "mpi" in self.parts:
                rows.append(("mpirun", self.mpirun or _NO_MPIRUN))
        if self.controller is not None:
            how = f"right, on two processes through {PARTS[self.controller]}"
            rows.append(("all-reduce", how))
        return [f"{name:<16}{text}" for name, text in rows]


def check(env: Mapping[str, str]) -> Report:
    """Find out what is built into Horovod, and try it on two processes.

    Args:
        env: The environment of this process.

    Returns:
        The report.
    """
    horovod = find_installed()
    try:
        tensorflow = find_tensorflow()
    except BuildError as error:
        return Report(horovod, problem=str(error))
    problem = mismatch(horovod, tensorflow)
    if problem is not None:
        return Report(horovod, tensorflow, problem=problem)
    mpirun = which("mpirun", path=env.get("PATH"))
    parts = None
    try:
        parts = probe(env)
        controller = try_all_reduce(parts, env)
    except BuildError as error:
        return Report(horovod, tensorflow, parts, mpirun, problem=str(error))
    return Report(horovod, tensorflow, parts, mpirun, controller)


def mismatch(horovod: Installed | None, tensorflow: TensorFlow) -> str | None:
    """Say why a Horovod does not fit a TensorFlow.

    Args:
        horovod: What is installed; None if nothing is.
        tensorflow: The TensorFlow beside it.

    Returns:
        The reason, with what to do; None if they fit.
    """
    if horovod is None:
        return (
            f"Horovod must be installed. Received: an environment without. {_INSTALL}"
        )
    if horovod.built_for is None or "TensorFlow" not in horovod.frameworks:
        return (
            "Horovod must be built with its part for TensorFlow. Received: Horovod "
            f"{horovod.version} in {horovod.folder}, without. {_INSTALL}"
        )
    if not same_version(horovod.built_for, tensorflow.version):
        return (
            "Horovod must be built for the TensorFlow that is installed. Received: one "
            f"for {horovod.built_for}, beside TensorFlow {tensorflow.version}. "
            f"{_INSTALL}"
        )
    return None


def _marks(names: Sequence[str], present: Sequence[str]) -> str:
    """List the names that are there, then those that are not."""
    there = ", ".join(name for name in names if name in present) or "none"
    absent = ", ".join(name for name in names if name not in present)
    return f"{there} (not {absent})" if absent else there
