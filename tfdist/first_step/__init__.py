"""The check that the first step of a `fit` is that of one process."""
