"""The proxy of a forked process; imports only what starts in milliseconds."""

import json
import os
import signal
import socket
import sys

# Modules that `python -m` runs and that import TensorFlow.
MODULES = ("tfdist.benchmarks.", "tfdist.default_strategy", "tfdist.verify.child")
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def run_forked(socket_path):
    """Run this process's program in a forked process, if it is one; then exit as it."""
    program = program_of(sys.orig_argv)
    if program is None:
        return
    request = {
        **program,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "ignored": [s for s in FORWARDED if signal.getsignal(s) == signal.SIG_IGN],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(socket_path)
        # The server expects the start first.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        for number in FORWARDED:
            signal.signal(number, lambda n, _: connection.send(bytes([n])))
        # One packet may be too small for the environment: it goes through a file.
        file = os.memfd_create("request")
        os.write(file, json.dumps(request).encode())
        socket.send_fds(connection, [b"start"], [file, 0, 1, 2])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = connection.recv(64)
    end_as(int(status) if status else signal.SIGKILL)


def program_of(argv):
    """Return what Python was asked to run; None if a fork would gain nothing."""
    arguments, unsafe_path = list(argv[1:]), True
    while arguments and arguments[0] in ("-P", "-u"):
        unsafe_path &= arguments.pop(0) != "-P"
    if not arguments:
        return None
    code = module = None
    if arguments[0] == "-c":
        code, argv, folder = arguments[1], ["-c", *arguments[2:]], ""
    elif arguments[0] == "-m" and arguments[1].startswith(MODULES):
        module, argv, folder = arguments[1], arguments[1:], os.getcwd()
    elif arguments[0].endswith(".py"):
        argv, folder = arguments, os.path.dirname(os.path.realpath(arguments[0]))
    else:
        return None
    path = [folder] if unsafe_path else []
    return {"code": code, "module": module, "argv": argv, "path": [*path, *sys.path]}


def end_as(status):
    """End as a process with this status of `waitpid` has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    os._exit(os.WEXITSTATUS(status))
