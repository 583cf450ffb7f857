"""The parts of a training step that all strategies share."""
