"""The parser of the command line, with errors that help."""

import argparse
import difflib
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are short and name the option that may be meant."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where to read more; exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\nSee `{self.prog} --help`.\n")

    def refuse(self, option: str) -> NoReturn:
        """Exit because of an argument that nobody knows.

        Args:
            option: The argument.
        """
        # "--timeout=5" is about "--timeout".
        name = option.partition("=")[0]
        nearest = difflib.get_close_matches(name, self._option_string_actions, n=1)
        advice = f" Did you mean {nearest[0]}?" if nearest else ""
        self.error(f"there is no option {name}.{advice}")
