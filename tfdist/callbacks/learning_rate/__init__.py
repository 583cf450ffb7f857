"""Callbacks that change or print the learning rate."""
