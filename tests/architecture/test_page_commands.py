"""The commands in the pages exist, with their options.

`tfdist run` runs with `--dry-run`, `tfdist config build` runs, and the parser reads all
other commands of tfdist. test_docs.py looks at paths and at targets of make;
tests/distributed/test_page_blocks.py runs Python.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT, all_blocks

from tfdist.launching import machine
from tfdist_cli.main import build_parser, main

LANGUAGES = {
    "bash": "read by bash, and its commands of tfdist as below",
    "console": "here",
    "diff": "what has changed in a file; that of horovod.md has a test of its own",
    "json": "here",
    "python": "tests/distributed/test_page_blocks.py",
    "": "what something has printed, or a drawing",
}

# Commands other than tfdist, and why they do not run here.
OTHERS = {
    "bsub": "needs LSF; tests/unit/cluster/test_job_files.py runs the script",
    "cat": "the reader's files",
    "docker": "needs a daemon; tests/architecture/test_recipes.py reads its files",
    "exec": "of the shell",
    "export": "of the shell; a TF_CONFIG is read below",
    "git": "changes the checkout",
    "horovodrun": "tests/distributed/test_horovod_launchers.py runs it",
    "kubectl": "needs a cluster; tests/architecture/test_recipes.py reads its files",
    "make": "test_docs.py knows its targets, and .ci/run runs most of them",
    "mpirun": "tests/distributed/test_horovod_launchers.py runs it",
    "pip": "would install; the Makefile does",
    "python": "options of examples are looked up below",
    "python3": "makes an environment; the Makefile does the same",
    "qsub": "needs PBS; tests/unit/cluster/test_job_files.py runs the script",
    "rm": "the reader's files",
    "salloc": "needs Slurm; tests/distributed/test_slurm.py runs the like",
    "sbatch": "tests/distributed/test_slurm.py runs it",
    "source": "of the shell",
    "srun": "tests/distributed/test_slurm.py runs it",
    "ssh": "tests/distributed/test_run_hosts.py runs it",
    "tail": "the reader's files",
}

BETWEEN = {"|", ";", "&&", "&", "(", ")", ");"}
OF_LOOPS = {"for", "do", "done"}
CONSOLE, BASH = all_blocks("console"), all_blocks("bash")


def typed(block):
    """Return the commands of a console block, each with what is printed after it."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found and found[-1][0].count("'") % 2:
            found[-1] = (f"{found[-1][0]} {line.strip()}", [])
        else:
            assert found, f"{block.name} begins without a prompt"
            found[-1][1].append(line)
    return found


def simple_commands(line):
    """Split a line into its commands, without redirections and variables of loops."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands, command = [], []
    for word in [*lexer, ";"]:
        if word in BETWEEN:
            commands.append(command)
            command = []
        elif word not in OF_LOOPS - {"for"}:
            command.append(re.sub(r"^\$\w+$", "1", word))
    whole = [command for command in commands if command and command[0] != "for"]
    return [
        command[: command.index(">")] if ">" in command else command
        for command in whole
    ]


def of_tfdist(line):
    """Return the arguments of each `tfdist` in a line, also behind other launchers."""
    return [
        command[command.index("tfdist") + 1 :]
        for command in simple_commands(line)
        if "tfdist" in command
    ]


def parse(arguments):
    """Read a command of tfdist; end like it where it would not understand."""
    args, unknown = build_parser(arguments[:1]).parse_known_args(arguments)
    if unknown:
        args.parser.refuse(unknown[0])
    return args


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """A folder with the files that commands name, and no server for names of hosts."""
    monkeypatch.setattr(machine, "look_up", lambda name: [])
    (tmp_path / "hosts").write_text("node1 slots=4\nnode2 slots=4\n")
    (tmp_path / "my_package").mkdir()
    for name in ("train.py", "my_package/__init__.py", "my_package/train.py"):
        (tmp_path / name).touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)


def commands_of_tfdist():
    """Return all commands of tfdist, with what is printed after each and its place."""
    found = []
    for block in CONSOLE:
        for line, printed in typed(block):
            found += [(block.name, args, printed) for args in of_tfdist(line)]
    for block in BASH:
        for inner in re.findall(r"\$\((tfdist [^)]*)\)", block.text):
            found += [(block.name, args, []) for args in of_tfdist(inner)]
    return found


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [pytest.param(a, p, id=f"{n}-{' '.join(a)}") for n, a, p in commands_of_tfdist()],
)
def test_a_command_of_tfdist_is_understood(arguments, printed, somewhere, capsys):
    args = parse(arguments)

    if arguments[0] == "run" and args.collective != "horovod":
        assert main(["run", "--dry-run", *arguments[1:]]) == 0
        program = getattr(args, "command", [])
        if program and program[0] == "tfdist":
            parse(program[1:])
    elif arguments[:2] == ["config", "build"] and "--from" not in arguments:
        check_what_is_built(arguments, printed, capsys)


def check_what_is_built(arguments, printed, capsys):
    """Run `tfdist config build`, and compare with what the page shows."""
    is_wrong = any(": error: " in line for line in printed)
    if is_wrong:
        with pytest.raises(SystemExit):
            main(arguments)
    else:
        assert main(arguments) == 0
    shown = capsys.readouterr()
    if printed:
        assert (shown.err if is_wrong else shown.out).splitlines() == printed


def with_imports(program):
    """Return the text of an example, and of those that it imports."""
    text = program.read_text()
    others = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    files = [program.with_name(f"{name}.py") for name in others]
    return "\n".join([text, *(file.read_text() for file in files if file.exists())])


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.name)
def test_other_commands_are_known_and_examples_have_their_options(block):
    commands = [each for line, _ in typed(block) for each in simple_commands(line)]

    assert {command[0] for command in commands} <= {"tfdist", *OTHERS}
    for command in commands:
        programs = [word for word in command if word.startswith("examples/")]
        if not programs or not programs[0].endswith(".py"):
            continue
        text = with_imports(ROOT / programs[0])
        for word in command[command.index(programs[0]) + 1 :]:
            option = re.match(r"--(\w+)", word)
            if option:
                # By absl's flags, or by argparse.
                assert re.search(rf"[\"'](--)?{option[1]}[\"']", text), word


def test_blocks_of_other_languages_can_be_read():
    assert {block.language for block in all_blocks()} <= set(LANGUAGES)
    for block in BASH:
        done = subprocess.run(
            ["bash", "-n"], input=block.text, capture_output=True, text=True, check=True
        )
        assert done.stderr == "", block.name
    texts = [block.text for block in all_blocks("json")]
    for block in CONSOLE:
        for line, _ in typed(block):
            if line.startswith("export TF_CONFIG="):
                texts += re.findall(r"'(.*)'", line)
    assert all(json.loads(text) for text in texts)
