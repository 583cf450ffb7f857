"""Rates, efficiencies and scaling laws: arithmetic without TensorFlow."""
