"""Optimizers whose variables are divided among the ranks: `shard_optimizer`."""
