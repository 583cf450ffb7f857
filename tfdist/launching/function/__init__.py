"""A function in several processes: of this machine, of Ray or of Spark."""
