"""Flight record of each rank: its collectives and steps, and their comparison."""
