"""A parity certificate: whether N processes train a script as one process does.

Nothing here is imported by a program that trains. `verify` starts the script under
`child`, which watches Keras from inside of the process; what was seen is compared here.
"""

from tfdist.verify.orders import Orders
from tfdist.verify.start import VerifyError, verify

__all__ = ["Orders", "VerifyError", "verify"]
