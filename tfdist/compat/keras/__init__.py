"""Patches of Keras, and the hooks by which strategies serve them."""
