"""Saving the complete state of a training run, and resuming from it."""
