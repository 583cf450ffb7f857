"""The parts of a training step that strategies share."""
