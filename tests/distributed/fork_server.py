"""Server that forks the Python processes of tests.

It has imported TensorFlow, Keras and tfdist, and has run no operation: as long as
TensorFlow has not started its devices, a fork is as good as a new process. It keeps one
thread, forks for each request of `startup/fork_client.py`, and ends when no session of
tests holds it any longer.

A forked process shares what an interpreter draws when it starts: the seeds of `random`
and NumPy are drawn again, the order of hashed strings is that of the server. What a new
interpreter does by itself is tested where modules have the marker `new_processes`.
"""

import atexit
import builtins
import contextlib
import gc
import importlib.util
import json
import os
import random
import selectors
import signal
import socket
import sys
import threading
import traceback
import types

PRELOADED = ("tensorflow", "keras", "numpy", "tfdist.strategies", "tfdist.callbacks")
# Keras imports these only because they are there, which takes seconds.
NOT_FOR_KERAS = ("matplotlib", "sklearn")


def main(socket_path):
    """Serve, in the background once requests are answered, while sessions hold it."""
    for package in NOT_FOR_KERAS:
        sys.modules[package] = None
    for module in PRELOADED:
        importlib.import_module(module)
    for package in NOT_FOR_KERAS:
        del sys.modules[package]
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(socket_path)
    listener.listen(64)
    if os.fork() == 0:
        Server(listener).serve()


class Server:
    """Forks a process for each connection, and tells it how the process has ended."""

    def __init__(self, listener):
        self._listener = listener
        self._connections = {}
        self._holders = 0
        self._selector = selectors.DefaultSelector()
        wake_up, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for source, handle in (
            (listener, self._accept),
            (wake_up, self._collect),
        ):
            self._selector.register(source, selectors.EVENT_READ, handle)
        self._wake_up = wake_up

    def serve(self):
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _accept(self, listener):
        connection, _ = listener.accept()
        message, files, _, _ = socket.recv_fds(connection, 16, 4)
        if message == b"hold":
            connection.send(b"held")
            self._holders += 1
            self._selector.register(connection, selectors.EVENT_READ, self._let_go)
            return
        if message != b"start":
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            become(*files)
        for file in files:
            os.close(file)
        self._connections[pid] = connection
        self._selector.register(
            connection, selectors.EVENT_READ, lambda it: self._signal(it, pid)
        )

    def _signal(self, connection, pid):
        """Pass a signal on; a proxy that has gone takes the process with it."""
        if self._connections.get(pid) is not connection:
            return  # Of those that are ready now, the end of the process came first.
        try:
            number = connection.recv(1)
        except ConnectionResetError:
            number = b""
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            self._selector.unregister(connection)

    def _collect(self, wake_up):
        os.read(wake_up, 4096)
        while self._connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._connections.pop(pid)
            if connection.fileno() in self._selector.get_map():
                self._selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.send(b"%d" % status)
            connection.close()

    def _let_go(self, connection):
        """End with the last session, and everything that they started with us."""
        self._selector.unregister(connection)
        connection.close()
        self._holders -= 1
        if not self._holders:
            for pid in self._connections:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)


def become(request_file, *standard_files):
    """Turn a forked process into what the proxy was to run; never return."""
    code = 1
    try:
        with open(request_file, "rb") as file:
            file.seek(0)
            request = json.load(file)
        for target, file in enumerate(standard_files):
            os.dup2(file, target)
        os.closerange(3, 256)
        prepare(request)
        code = run(request)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if code == -signal.SIGINT:
            # As Python itself, so that a shell knows of Ctrl-C.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def prepare(request):
    """Make the process what a new interpreter would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["cwd"])
    for name in os.environ.keys() - request["env"].keys():
        del os.environ[name]
    os.environ.update(request["env"])
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    random.seed()
    sys.modules["numpy"].random.seed()


def run(request):
    """Run a script, program or module as the main one; return its code, or -SIGINT."""
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    try:
        exec(program_of(request, module), module.__dict__)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def program_of(request, module):
    """Return the code to run, and let the main module know where it is from."""
    if request["code"] is not None:
        return compile(request["code"], "<string>", "exec")
    if request["module"] is not None:
        module.__spec__ = spec = importlib.util.find_spec(request["module"])
        module.__package__ = spec.parent
        module.__file__ = sys.argv[0] = spec.origin
        return spec.loader.get_code(spec.name)
    module.__file__ = request["argv"][0]
    with open(module.__file__, "rb") as file:
        return compile(file.read(), module.__file__, "exec")


if __name__ == "__main__":
    main(sys.argv[1])
