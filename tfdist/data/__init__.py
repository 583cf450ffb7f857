"""Feeding the ranks."""

from tfdist.data.sharding import Shard, at_least_one_row, cut_rows, rows_of

__all__ = ["Shard", "at_least_one_row", "cut_rows", "rows_of"]
