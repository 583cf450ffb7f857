import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster.host_slots import HostSlots
from tfdist.cluster.hostfile import format_hostfile, parse_hostfile

# `tests/conftest.py` hides from the garbage collector what Hypothesis looks for there.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


# Lines with slots=, max_slots= or a repeated name are as Open MPI 4.1.4 has read them
# (`mpirun --display-allocation`), but for a single name, which it gives all its cores.
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=4 max_slots=4\nb slots=2\n", [("a", 4), ("b", 2)]),
        ("a slots=4 max-slots=6  # x", [("a", 4)]),
        ("  a slots = 4 max_slots = 4 // x", [("a", 4)]),
        ("a\tslots=4\r\n", [("a", 4)]),
        ("a max_slots=4", [("a", 4)]),
        ("a max_slots=4 slots=2", [("a", 2)]),
        ("a\nb\na\na", [("a", 3), ("b", 1)]),
        ("a\nA", [("a", 2)]),
        ("a:4\nb:2", [("a", 4), ("b", 2)]),
        ("a:4\nb", [("a", 4), ("b", 1)]),
        ("[::1]:4\n[::2] slots=2\n[::3]", [("[::1]", 4), ("[::2]", 2), ("[::3]", 1)]),
        ("# all of them\n\n   \n10.0.0.1\n", [("10.0.0.1", 1)]),
    ],
)
def test_the_ways_to_write_it(text, hosts):
    assert parse_hostfile(text) == tuple(HostSlots(*host) for host in hosts)


LINE = "must be a host, with slots=N and max_slots=N at most once behind it. Received: "
HOST = "must be a host, or a host and its slots. Received: "
TWICE = "is a host that stands there already, with a number of slots. Received: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hostfile names no host. Received: nothing but blank lines and comments."),
        ("# a\n\n", "hostfile names no host. Received: nothing but blank lines and"),
        ("a slots=4\nb foo=1", f"line 2 of hostfile {LINE}'foo=1'. Write it as"),
        ("a 4", f"line 1 of hostfile {LINE}'4'. Write it as"),
        ("\n\na slots", f"line 3 of hostfile {LINE}'slots'. Write it as"),
        ("a slots=4 slots=5", f"line 1 of hostfile {LINE}'slots=5'. Write it as"),
        (
            "a max_slots=4 max-slots=5",
            f"line 1 of hostfile {LINE}'max-slots=5'. Write it as",
        ),
        (
            "a slots=0",
            "line 1 of hostfile must have a number of slots, at least 1, behind "
            "slots=. Received: 'slots=0'. Write it as",
        ),
        ("a slots=", "line 1 of hostfile must have a number of slots, at least 1, beh"),
        ("a slots=-1", "line 1 of hostfile must have a number of slots, at least 1, b"),
        ("a slots=²", "line 1 of hostfile must have a number of slots, at least 1, be"),
        ("a max_slots=x", "line 1 of hostfile must have a number of slots, at least 1"),
        ("a slots=999999", "line 1 of hostfile must have a number of slots, at least "),
        (
            "a slots=4 max_slots=2",
            "line 1 of hostfile has more slots than max_slots allows. "
            "Received: 'a slots=4 max_slots=2'. Lower the one",
        ),
        (
            "a:4 slots=4",
            "line 1 of hostfile tells the slots twice. Received: 'a:4 slots=4'. Leave",
        ),
        ("a:0", "line 1 of hostfile must end in a number of slots, at least 1. Receiv"),
        ("a,b", f"line 1 of hostfile {HOST}'a,b'. Write it as \"node1 slots=4\""),
        ("::1", f"line 1 of hostfile {HOST}'::1'. Write it as"),
        (
            "slots=4",
            "line 1 of hostfile must begin with a host. Received: 'slots=4'. Wr",
        ),
        ("a:2222:4", f"line 1 of hostfile {HOST}'a:2222:4'. Write it as"),
        (
            "me@a slots=4",
            "line 1 of hostfile must be a host without a user. Received: 'me@a'. Leave",
        ),
        ("a slots=2\na", f"line 2 of hostfile {TWICE}'a'. Write it once"),
        ("a\na slots=2", f"line 2 of hostfile {TWICE}'a slots=2'. Write it once"),
        ("a:2\nb\n A:2", f"line 3 of hostfile {TWICE}'A:2'. Write it once"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_hostfile(text)


def test_the_error_names_the_file():
    with pytest.raises(ValueError, match="^line 1 of --hostfile hosts must be a host"):
        parse_hostfile("a b", place="--hostfile hosts")


def test_what_is_written():
    text = format_hostfile([HostSlots("a", 4), HostSlots("[::1]")])

    assert text == "a slots=4\n[::1] slots=1\n"


@settings(deadline=None, derandomize=True, database=None)
@given(st.text(st.sampled_from("ab:[]=4 \n\t#@/slotmax_-²") | st.characters()))
def test_any_text_is_hosts_or_an_error_with_three_parts(text):
    message = ""
    try:
        hosts = parse_hostfile(text)
    except ValueError as error:
        hosts, message = (HostSlots("a"),), str(error)

    assert parse_hostfile(format_hostfile(hosts)) == hosts
    assert re.fullmatch(r"(.+\. Received: .+\. .+)?", message, re.DOTALL)
