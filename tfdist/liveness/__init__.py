"""Heartbeats of ranks, and the diagnosis of a job that cannot continue."""
