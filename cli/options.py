"""The command-line parser, and options that several commands share."""

import argparse
import contextlib
import difflib
import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from tfdist.cluster.hosts import HostSlots, parse_hostfile, parse_hosts

# The value of --json without a file.
TO_STDOUT = Path("-")
JSON = {
    "--json [FILE]": "print JSON instead of tables; with a FILE, write the JSON there "
    "as well"
}
# The words of torchrun and horovodrun.
_OTHER_NAMES = {
    "--nproc_per_node": "-np",
    "--nproc-per-node": "-np",
    "--num-proc": "-np",
    "--nnodes": "-H",
}
# About 30 years, which all clocks and locks take.
_MOST_SECONDS = 1e9
# Far above any of these files; a device may have no end.
_LONGEST = 2**24


class Parser(argparse.ArgumentParser):
    """A parser with short errors that suggest the option that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Print the error and how to get help; exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\nSee `{self.prog} --help`.\n")

    def refuse(self, option: str) -> NoReturn:
        """Exit because of an unknown argument."""
        # "--timeout=5" means "--timeout".
        name = option.partition("=")[0]
        nearest = difflib.get_close_matches(name, self._option_string_actions, n=1)
        if _OTHER_NAMES.get(name) in self._option_string_actions:
            nearest = [_OTHER_NAMES[name]]
        advice = f" Did you mean {nearest[0]}?" if nearest else ""
        self.error(f"there is no option {name}.{advice}")

    def find(self, word: str) -> argparse.Action | None:
        """Return the option that a word of a command line names, or None."""
        # "--timeout=5" means "--timeout".
        return self._option_string_actions.get(word.partition("=")[0])


def _seconds(text: str) -> float:
    """Parse a positive time."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= _MOST_SECONDS:
            return float(text)
    raise argparse.ArgumentTypeError(
        f"it must be a positive number of seconds, at most 1e9. Received: {text}. "
        "Leave it out for the default"
    )


_TYPES: Mapping[str, Callable[[str], Any]] = {
    "N": int,
    "SECONDS": _seconds,
    "FILE": Path,
    "DIR": Path,
}
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(
    commands: Commands,
    name: str,
    func: Callable[[argparse.Namespace], int] | None,
    summary: str,
    description: str,
    epilog: str | None = None,
) -> Parser:
    """Add the parser of a command, which becomes `args.parser` after parsing."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(parser=parser, func=func)
    return parser


def add_options(
    parser: argparse._ActionsContainer,
    options: Mapping[str, str],
    types: Mapping[str, Callable[[str], Any]] | None = None,
    **defaults: Any,
) -> None:
    """Add options, written as the help shows them: {"-np N": "how many processes"}."""
    # The metavar gives the type: N is a number, a|b a choice, [FILE] an optional file.
    # "..." makes an option repeatable; an option without a metavar is a switch.
    kinds = {**_TYPES, **(types or {})}
    for usage, text in options.items():
        words = usage.split()
        flags = [word for word in words if word.startswith("-")]
        metavar = words[len(flags)] if len(words) > len(flags) else ""
        settings: dict[str, Any] = {"action": "store_true"}
        if "|" in metavar:
            settings = {"choices": metavar.split("|")}
        elif metavar:
            name = metavar.strip("[]")
            settings = {"metavar": name, "type": kinds.get(name, str)}
        if metavar != metavar.strip("[]"):
            settings |= {"nargs": "?", "const": TO_STDOUT}
        if words[-1] == "...":
            settings |= {"action": "append", "default": []}
        action = parser.add_argument(*flags, help=text, **settings)
        if action.dest in defaults:
            action.default = defaults[action.dest]
            action.help = f"{text} (default: %(default)s)"


def add_program(parser: Parser, text: str) -> None:
    """Add `-m` and the program with its arguments, after all other options."""
    add_options(parser, {"-m": "the command is a Python module, as in python -m"})
    parser.add_argument("command", nargs=argparse.REMAINDER, help=text)


def without_dashes(words: list[str]) -> list[str]:
    """Return a program without the leading `--` that separates it from the options."""
    return words[1:] if words[:1] == ["--"] else words


def python_program(args: argparse.Namespace, what: str) -> tuple[str, ...]:
    """Return the script or module with its arguments; refuse other programs."""
    # Imported late: most commands start no program.
    from tfdist.launching.job import resolve_command

    words = without_dashes(args.command)
    if words and not args.m and not words[0].endswith((".py", ".ipynb")):
        raise ValueError(
            f"Only a Python script or module can be {what}. "
            f"Received: {words[0]}. Give a .py file, or -m and a module."
        )
    resolve_command(words, module=args.m)
    if words == args.command:
        _check_order(args)
    return tuple(words)


def _check_order(args: argparse.Namespace) -> None:
    """Refuse the options of a command after its script, up to a `--` of the script."""
    script, *words = args.command
    for word in itertools.takewhile(lambda word: word != "--", words):
        option = args.parser.find(word)
        # One that stands before the script, too, is the script's own here.
        if option is not None and getattr(args, option.dest, None) == option.default:
            raise ValueError(
                f"The options of {args.parser.prog} stand before the script; what "
                f"follows it is for the script. Received: {shlex.join(args.command)}. "
                f"Write {word} before {script}; or -- before {script}, if the script "
                "has an option of this name."
            )


def given_options(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options that have a value, such as {"--max-restarts": 3}."""
    values = {name: getattr(args, name) for name in names}
    return {
        "-H" if name == "H" else "--" + name.replace("_", "-"): value
        for name, value in values.items()
        if value is not None and value is not False and value != []
    }


def check_outputs(args: argparse.Namespace, *names: str) -> None:
    """Refuse output files that cannot be written, before minutes of work."""
    for option, file in given_options(args, *names).items():
        if file == TO_STDOUT:
            continue
        if not file.parent.is_dir():
            raise FileNotFoundError(
                f"{option} must be a file in a folder that exists. "
                f"Received: {file}. Make the folder {file.parent} first."
            )
        place = file if file.exists() else file.parent
        if file.is_dir() or not os.access(place, os.W_OK):
            raise PermissionError(
                f"{option} must be a file that can be written. "
                f"Received: {file}. Choose another place."
            )


def print_figures(file: Path | None, figures: Any, table: str) -> None:
    """Print figures as a table, or as JSON if `--json` says so, or write them."""
    text = json.dumps(figures, indent=2)
    print(text if file == TO_STDOUT else table)
    if file is not None and file != TO_STDOUT:
        file.write_text(f"{text}\n")


def add_host_options(
    parser: argparse._ActionsContainer, text: str
) -> argparse._MutuallyExclusiveGroup:
    """Add the two options that name hosts, and return their group."""
    group = parser.add_mutually_exclusive_group()
    options = {
        "-H HOST:SLOTS,... ...": text,
        "--hostfile FILE": "the same from a file, or - for the standard input: "
        "node1 slots=4 as Open MPI and Horovod write it, node1:4 as MPICH does, or "
        "names",
    }
    add_options(group, options, {"FILE": str})
    return group


def hosts_given(args: argparse.Namespace) -> tuple[HostSlots, ...] | None:
    """Return the hosts that the options name, or None."""
    if args.H:
        return parse_hosts(",".join(args.H))
    if args.hostfile is None:
        return None
    text = read_file(args.hostfile, option="--hostfile", holds="hosts")
    return parse_hostfile(text, place=f"--hostfile {args.hostfile}")


def read_file(
    file: str, *, option: str = "FILE", holds: str = "the value of TF_CONFIG"
) -> str:
    """Read a file, or the standard input for `-`."""
    if file == "-":
        return sys.stdin.buffer.read().decode(errors="surrogateescape")
    try:
        with Path(file).open(encoding="utf-8", errors="surrogateescape") as source:
            text = source.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST:,} characters")
        return text
    # A null byte in the name raises ValueError.
    except (OSError, ValueError) as error:
        raise OSError(
            f"{option} must be a file that can be read. Received: {file} "
            f"({getattr(error, 'strerror', None) or error}). "
            f"Give the name of one that holds {holds}, or - for the standard input."
        ) from None
