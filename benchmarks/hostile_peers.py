"""A training under attack by strangers, against the same training undisturbed.

Rank 1 comes late, so that the door of rank 0 stays open: strangers open connections and
send nonsense there, and go on once the job trains. Then, within one process, ranks that
were let in send nonsense to the hub. Over MPI rank 0 opens its door only when all ranks
are there, for milliseconds.
"""

import json
import multiprocessing
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from script import is_program, run_script

from tfdist.benchmarks.processes import check_at_least
from tfdist.cluster.detect import detect
from tfdist.cluster.launcher import SECRET_VARIABLE
from tfdist.liveness.hub import Hub
from tfdist.rendezvous.handshake import RankName
from tfdist.rendezvous.secret import new_nonce, proof_of
from tfdist.rendezvous.wire import Reader, pack, receive
from tfdist_cli.table import format_table

_SECONDS = 300.0
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.01
_STRANGERS = 4
_RANKS = 8
# Connections that one stranger holds at the same time.
_HELD = 200
_KINDS = ("silent", "garbage", "half", "huge", "nested", "wrong", "replayed", "slow")
_MARK = "mark"
_COUNTED = ("frames", "accepted", "refused", "unanswered")
# The share of the connections before rank 1 is let in.
_AT_THE_DOOR = 0.7
_REPORT = {"call": 1, "what": "step", "inside": False, "seconds": 1.0, "plan": []}
_MESSAGES = (
    {"kind": "beat", "report": _REPORT},
    {"kind": "bye", "error": "", "report": _REPORT},
    {"kind": "error", "text": "ValueError in step"},
    {"kind": "told", "what": "file", "call": 1, "value": True},
    {"kind": "stacks", "doing": "reads", "stacks": ["a", "b"]},
    {"kind": "exchange", "key": '["save", 0]', "value": "x", "to_chief": True},
    {"kind": "hello", "nonce": "0" * 32, "proof": "0" * 64},
    {"kind": "confirm", "rank": 1, "addresses": [], "pid": 1, "host": "h"},
    {"kind": "stop"},
)
_STRANGE = (None, True, -1, 1e999, 10**400, "", "\ud800", [], {}, [[[]]], "x" * 3000)


def train(orders):
    """Train as one rank, and write what is compared."""
    import hashlib

    import keras
    import numpy as np

    import tfdist

    folder, rank = Path(orders["folder"]), int(os.environ["TFDIST_RANK"])
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    while rank > 0 and not (folder / "open").exists():
        time.sleep(_POLL_SECONDS)
    strategy = tfdist.strategies.AllReduceStrategy("tensorflow")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(8)]
        model = keras.Sequential([keras.Input((32,)), keras.layers.Dropout(0.2)])
        for layer in layers:
            model.add(layer)
        model.compile("adam", "mse")
    x = np.random.default_rng(1).normal(size=(6400, 32)).astype("float32")
    times = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.monotonic())
    )
    epochs = orders["steps"] // 100
    model.fit(x, x[:, :8], 64, epochs, callbacks=[clock], verbose=0)
    process = psutil.Process()
    figures = {
        "sha256": hashlib.sha256(
            b"".join(weight.tobytes() for weight in model.get_weights())
        ).hexdigest(),
        "step_seconds": float(np.median(np.diff(times))),
        "descriptors": process.num_fds(),
        "rank_0_bytes": process.memory_info().rss,
        "rank_0_peak_bytes": _peak_bytes(os.getpid()),
        "ports": _ports(process),
    }
    (folder / f"figures.{rank}").write_text(json.dumps(figures))


def measure(args):
    """Run both jobs and the ranks that went mad; return figures and a table."""
    check_at_least(100, connections=args.connections, frames=args.frames)
    check_at_least(100, steps=args.steps)
    calm = _run(args, strangers=0)
    attacked = _run(args, strangers=_STRANGERS)
    figures = {
        "undisturbed": calm,
        "attacked": attacked,
        "hub": attack_hub(args.frames),
    }
    rows = [[name, str(calm[name]), str(attacked[name])] for name in calm]
    table = format_table(["", "undisturbed", "attacked"], rows)
    lines = [f"{name}: {value}" for name, value in figures["hub"].items()]
    return figures, "\n".join([table, "", "the hub:", *lines])


def _run(args, strangers):
    """Run the job, perhaps under attack; return the figures of rank 0."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        orders = json.dumps({"folder": name, "steps": args.steps})
        tfdist = Path(sys.executable).with_name("tfdist")
        words = [tfdist, "run", "-np", "2", __file__, orders]
        with subprocess.Popen(words) as launcher:
            try:
                attack = _attack(args, folder, launcher, strangers)
                code = launcher.wait(_SECONDS)
            finally:
                launcher.terminate()
        if code != 0:
            raise ValueError(f"The job has ended with exit code {code}.")
        figures = json.loads((folder / "figures.0").read_text())
    return figures | attack


def _attack(args, folder, launcher, strangers):
    """Attack rank 0 until it trains, let rank 1 in meanwhile, and go on."""
    path = folder / "pid.0"
    pid = _wait_for(lambda: path.exists() and path.read_text(), launcher)
    zero = psutil.Process(int(pid))
    port = _wait_for(lambda: _ports(zero), launcher)[0]
    most = zero.num_fds()
    fork = multiprocessing.get_context("fork")
    counts = fork.Array("q", len(_COUNTED))
    shares = args.connections // max(1, strangers), args.frames // max(1, strangers)
    processes = [
        fork.Process(
            target=_stranger, args=(port, *shares, seed, _secret(zero), counts)
        )
        for seed in range(strangers)
    ]
    for process in processes:
        process.start()
    figures = {}
    while strangers and sum(counts[1:]) < _AT_THE_DOOR * args.connections:
        most = max(most, zero.num_fds())
        time.sleep(_POLL_SECONDS)
    at_door = list(counts)
    (folder / "open").touch()
    for process in processes:
        process.join(_SECONDS)
    later = [count - before for count, before in zip(counts, at_door, strict=True)]
    for when, numbers in (("at_the_door", at_door), ("then", later)):
        figures |= {
            f"{name}_{when}": number
            for name, number in zip(_COUNTED, numbers, strict=True)
        }
    return {
        **figures,
        "descriptors_at_most": most,
        "job_outlived_attack": launcher.poll() is None,
    }


def _wait_for(condition, launcher):
    """Return the first true value of a condition."""
    deadline = time.monotonic() + _SECONDS
    while not (value := condition()):
        if launcher.poll() is not None or time.monotonic() > deadline:
            raise ValueError("The job has not opened its door.")
        time.sleep(_POLL_SECONDS)
    return value


def _ports(process):
    """Return the ports at which a process listens."""
    connections = process.net_connections("tcp")
    listening = [each for each in connections if each.status == psutil.CONN_LISTEN]
    return [each.laddr.port for each in listening]


def _peak_bytes(pid):
    """Return the most memory that a process has had."""
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def _secret(process):
    """Return what the proofs of a job are made with, as if it had been overheard."""
    env = process.environ()
    return f"{env[SECRET_VARIABLE]}\0{detect(env).run_id}"


def _stranger(port, connections, frames, seed, secret, counts):
    """Open connections and send frames, of all kinds in turn."""
    draw, held = random.Random(seed), []
    old = {"nonce": new_nonce(), "proof": new_nonce()}
    for number in range(connections):
        kind = _KINDS[number % len(_KINDS)]
        burst = frames * (number + 1) // connections - frames * number // connections
        outcome = "accepted"
        try:
            caller = socket.create_connection(("127.0.0.1", port), timeout=0.05)
            held.append((kind, caller))
            if kind == "replayed":
                old = _replay(caller, old, secret)
            _send(caller, _nonsense(draw, kind, burst))
        except ConnectionRefusedError:
            outcome = "refused"
        except TimeoutError:
            outcome = "unanswered"
        except OSError:  # Rank 0 has hung up meanwhile.
            pass
        with counts.get_lock():
            counts[0] += burst
            counts[_COUNTED.index(outcome)] += 1
        for kind, caller in draw.sample(held, min(4, len(held))):
            if kind == "slow":
                _send(caller, b"\0")
        while len(held) > _HELD:
            held.pop(0)[1].close()


def _send(caller, data):
    """Send as much as the other side takes."""
    with suppress(OSError):
        caller.sendall(data)


def _replay(caller, old, secret):
    """Send the proof of an earlier connection; return the right one for this."""
    challenge = receive(caller, 0.2)
    _send(caller, pack({"kind": "hello", **old}))
    nonce = new_nonce()
    proof = proof_of(secret, "caller", nonce, str(challenge.get("nonce")))
    return {"nonce": nonce, "proof": proof}


def _nonsense(draw, kind, burst):
    """Return what a stranger sends, with so many frames."""
    body = b"".join(_frame(draw) for _ in range(burst))
    match kind:
        case "silent":
            return b""
        case "half":
            return pack(draw.choice(_MESSAGES))[:-5]
        case "huge":
            return struct.pack("!I", draw.choice((4097, 2**28 + 1, 2**32 - 1))) + body
        case "nested":
            nested = draw.choice((b"[", b'{"a":')) * draw.randrange(600, 4000)
            return struct.pack("!I", len(nested)) + nested + body
        case "wrong":
            return pack(_MESSAGES[6]) + body
        case "slow":
            return struct.pack("!I", 4000)
    return body


def _frame(draw):
    """Return a frame: a message with a strange value, or bytes, perhaps damaged."""
    message = dict(draw.choice(_MESSAGES))
    if draw.random() < 0.7:
        where = message
        if "report" in message and draw.random() < 0.5:
            where = message["report"] = dict(_REPORT)
        where[draw.choice(list(where))] = draw.choice(_STRANGE)
    data = bytearray(pack(message))
    if draw.random() < 0.3:
        data[draw.randrange(4, len(data))] = draw.randrange(256)
    if draw.random() < 0.1:
        size = draw.randrange(300)
        data = struct.pack("!I", size) + draw.randbytes(size)
    return bytes(data)


def attack_hub(frames):
    """Let ranks send nonsense to one hub after the other; return what it took."""
    draw, handled, hubs = random.Random(0), 0, 0
    began, memory = time.monotonic(), psutil.Process().memory_info().rss
    while handled < frames:
        handled += _mad_ranks(draw)
        hubs += 1
    return {
        "frames_handled": handled,
        "hubs": hubs,
        "seconds": round(time.monotonic() - began, 1),
        "bytes_more": psutil.Process().memory_info().rss - memory,
    }


def _mad_ranks(draw):
    """Send frames to one hub as each rank but 0, until it is cut off; count them."""
    pairs = [socket.socketpair() for _ in range(_RANKS)]
    names = {rank: RankName(rank) for rank in range(_RANKS)}
    hub = Hub({rank: its for rank, (_, its) in enumerate(pairs)}, names, _SECONDS)
    ends = [end for end, _ in pairs]
    handled = sum(_rave(end, draw) for end in ends[1:])
    if not _is_answered(ends[0], Reader(), 0):
        raise ValueError("The hub has cut off rank 0.")
    for end in ends:
        end.close()
    hub.join(_SECONDS)
    return handled


def _rave(end, draw):
    """Send frames until the hub hangs up; return how many it has handled."""
    reader, handled = Reader(), 0
    end.settimeout(_ANSWER_SECONDS)
    with suppress(ConnectionError):
        end.sendall(_frame(draw))
        while _is_answered(end, reader, handled):
            handled += 1
            end.sendall(_frame(draw))
    return handled + 1


def _is_answered(end, reader, number):
    """Say something to all ranks, and return whether it comes back."""
    end.sendall(pack({"kind": "told", "what": _MARK, "call": number, "value": 1}))
    while data := end.recv(1 << 16):
        said = [each for each in reader.feed(data) if each["kind"] == "told"]
        if (_MARK, number) in [(each["what"], each["call"]) for each in said]:
            return True
    return False


if __name__ == "__main__":
    if is_program():
        train(json.loads(sys.argv[1]))
    else:
        run_script(
            __doc__,
            [
                ("--connections", 10_000, "connections of strangers"),
                ("--frames", 1_000_000, "frames, of strangers and of ranks each"),
                ("--steps", 3000, "steps of the training"),
            ],
            measure,
        )
