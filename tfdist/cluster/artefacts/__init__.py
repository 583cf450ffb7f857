"""What starts a whole job on a scheduler, written from its cluster."""

from tfdist.cluster.artefacts.formats import ARTEFACTS, format_artefact
from tfdist.cluster.artefacts.program import Program

__all__ = ["ARTEFACTS", "Program", "format_artefact"]
