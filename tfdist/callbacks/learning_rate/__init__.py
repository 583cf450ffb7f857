"""Callbacks that set or print the learning rate."""
