"""Strategies with several devices per process."""
