"""Hosts: their slots, the nodes of Slurm, and the resources of this host."""
