"""Collectives over Horovod."""
