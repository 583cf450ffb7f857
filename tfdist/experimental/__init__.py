"""Techniques that may still change: their names and results are not yet a promise."""
