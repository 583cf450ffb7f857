"""Verification that N processes train a script as one process does."""

from tfdist.verify.start import Orders, VerifyError, verify

__all__ = ["Orders", "VerifyError", "verify"]
