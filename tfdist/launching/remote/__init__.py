"""Ranks on other hosts, started by an agent there over ssh."""
