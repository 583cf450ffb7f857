"""Ranks on other hosts, started by an agent there that is reached by ssh."""
