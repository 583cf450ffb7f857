"""What Python runs first in the processes that tests start.

Keras imports matplotlib and scikit-learn only because they are installed. Without them
a process starts in two thirds of the time, and the tests start hundreds.
"""

import sys

for package in ("matplotlib", "sklearn"):
    # To import it is an error now, as where it is not installed.
    sys.modules[package] = None
