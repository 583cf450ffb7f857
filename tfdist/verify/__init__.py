"""Verification that N processes train a script as one process does.

A program that trains imports nothing of this. `verify` starts the script twice under
`child`, which watches Keras from inside of the process, and compares the recordings.
"""

from tfdist.verify.start import Orders, VerifyError, verify

__all__ = ["Orders", "VerifyError", "verify"]
