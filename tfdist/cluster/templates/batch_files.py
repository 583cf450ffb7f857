"""Scripts that start a job on batch systems: Slurm, PBS and LSF."""

from tfdist.cluster.templates.program import Nodes, Program, fill


def format_sbatch(nodes: Nodes, program: Program) -> str:
    """Format a script for `sbatch`, in which `srun` starts the tasks."""
    return fill(
        "sbatch.sh",
        name=program.name,
        nodes=nodes.count,
        slots=nodes.slots,
        cpus=program.cpus or 1,
        gpus=_line("#SBATCH --gpus-per-task={}", program.gpus),
        nodelist=_line("#SBATCH --nodelist={}", ",".join(nodes.names)),
        port=_line("export TFDIST_PORT_BASE={}", program.port),
        command=program.command,
    )


def format_pbs(nodes: Nodes, program: Program) -> str:
    """Format a script for `qsub`; `tfdist run` reads PBS_NODEFILE."""
    cpus = program.cpus or 1
    # PBS_NODEFILE has a line for each of `mpiprocs`.
    chunk = f"ncpus={cpus * nodes.slots}:mpiprocs={nodes.slots}:ompthreads={cpus}"
    if program.gpus:
        chunk += f":ngpus={program.gpus * nodes.slots}"
    chunks = [f"1:{chunk}:host={name}" for name in nodes.names]
    return fill(
        "pbs.sh",
        name=program.name,
        select="+".join(chunks) or f"{nodes.count}:{chunk}",
        command=program.command,
    )


def format_lsf(nodes: Nodes, program: Program) -> str:
    """Format a script for `bsub`; `tfdist run` reads LSB_DJOB_HOSTFILE."""
    cpus = program.cpus or 1
    on_each = cpus * nodes.slots
    # LSF counts cores, and LSB_DJOB_HOSTFILE has a line for each.
    every = f"""--hostfile <(awk 'NR % {cpus} == 1' "$LSB_DJOB_HOSTFILE") """
    gpus = (program.gpus or 0) * nodes.slots
    return fill(
        "lsf.sh",
        name=program.name,
        cores=nodes.count * on_each,
        on_each=on_each,
        gpus=_line('#BSUB -gpu "num={}:j_exclusive=yes"', gpus),
        hosts=_line('#BSUB -m "{}"', " ".join(nodes.names)),
        hostfile=every if cpus > 1 else "",
        command=program.command,
    )


def _line(text: str, value: object) -> str:
    """Return a line of a script, or nothing without a value."""
    return f"{text.format(value)}\n" if value else ""
