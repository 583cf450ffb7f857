"""Preparation, compression and reduction of gradients."""
