"""Resolvers: each reads the variables of one launcher or scheduler."""
