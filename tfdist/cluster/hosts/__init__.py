"""Hosts: slots, Slurm nodes and resource limits."""
