"""`uxfrm stat` has the format of /proc/net/xfrm_stat, and each drop is counted under the
kernel's reason, once."""

import json
import re
import socket
import subprocess
import time

import pytest

import echo
import patience
import prerequisite
import topology
from association import GCM_128, Association
from gateway import Gateway
from test_scapy import UxfrmEnd, security_association, sealed_request
from topology import HERE, THERE

try:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
except ImportError:
    prerequisite.not_run("needs scapy: apt-get install python3-scapy python3-cryptography")

TUNNEL = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 32")
USED_UP = Association(GCM_128, "tunnel", 4, 4, extra="replay-oseq 0xffffffff")
BLOCK = f"xfrm policy add src {HERE.inner[4]}/32 dst {THERE.inner[4]}/32 dir out action block"
WAIT_SECONDS = patience.SECONDS
LINE = re.compile(r"(Xfrm\w+) *\t(\d+)")


@pytest.fixture(scope="module")
def module_end(uxfrm):
    made = UxfrmEnd(uxfrm)
    yield made
    made.close()


@pytest.fixture
def end(module_end):
    yield module_end
    module_end.release()


def test_the_format_is_the_kernels(uxfrm, linux_network):
    """Name padded to 24, a tab, the count; and all lines that Linux has, in its order."""
    gateway = Gateway(uxfrm, linux_network.here)
    try:
        gateway.start([])
        ours = gateway.stat()
    finally:
        gateway.close()
    linux = linux_network.linux.run("cat /proc/net/xfrm_stat")
    names = [LINE.fullmatch(line)[1] for line in ours.splitlines()]
    assert ours == "".join(f"{name:<24}\t0\n" for name in names)
    linux_names = [LINE.fullmatch(line)[1] for line in linux.splitlines()]
    assert re.sub(r"\d+\n", "0\n", linux) == "".join(f"{name:<24}\t0\n" for name in linux_names)
    assert [name for name in names if name in linux_names] == linux_names


def test_without_a_gateway_it_says_so(uxfrm):
    with topology.Hosts() as hosts:
        command = ["ip", "netns", "exec", hosts.namespace("empty").name, uxfrm, "stat"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience.SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no uxfrm runs in this network namespace" in done.stderr


@pytest.mark.parametrize(
    ("lines", "counter"),
    [
        (TUNNEL.policies(HERE, THERE), "XfrmOutNoStates"),
        ([BLOCK], "XfrmOutPolBlock"),
        (USED_UP.lines(HERE, THERE), "XfrmOutStateSeqError"),
    ],
    ids=["no state", "block", "numbers used up"],
)
def test_what_may_not_leave(lines, counter, end):
    end.protect(lines)
    with end.network.here.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HERE.inner[4], 0))
        for _ in range(5):
            sender.sendto(echo.MARKER, (THERE.inner[4], 9))
    assert_counted(end, {counter: 5})


def flip_last_bit(frame):
    return frame[:-1] + bytes([frame[-1] ^ 1])


def test_each_reason_that_a_peer_can_give(end):
    end.protect(TUNNEL.lines(HERE, THERE))
    ours = security_association(TUNNEL, THERE, HERE)
    good = sealed_request(TUNNEL, end, ours, b"good")
    end.network.far.send(good)
    wanted = {}
    assert_counted(end, wanted)

    for frame, counter in (
        (good, "XfrmInStateSeqError"),  # a second time
        (flip_last_bit(sealed_request(TUNNEL, end, ours, b"")), "XfrmInStateProtoError"),
        (sealed_request(TUNNEL, end, unknown_spi(), b""), "XfrmInNoStates"),
        (runt(end), "XfrmInHdrError"),
        (from_elsewhere(end, ours), "XfrmInNoPols"),
    ):
        end.network.far.send(frame)
        wanted[counter] = wanted.get(counter, 0) + 1
        assert_counted(end, wanted)


def unknown_spi():
    sa = security_association(TUNNEL, THERE, HERE)
    sa.spi = 0xBAD5B1
    return sa


def runt(end):
    """The right SPI and a new sequence number, and nothing behind them."""
    header = IP(src=THERE.outer[4], dst=HERE.outer[4], proto=50)
    return bytes(Ether(dst=end.network.mac) / header / (HERE.spi.to_bytes(4, "big") + (9).to_bytes(4, "big")))


def from_elsewhere(end, sa):
    """Well protected, but no policy lets this inner source in."""
    inner = IP(src="10.77.0.1", dst=HERE.inner[4]) / UDP(sport=1, dport=echo.PORT) / b"stranger"
    return bytes(Ether(dst=end.network.mac) / sa.encrypt(IP(bytes(inner))))


def assert_counted(end, wanted):
    """Waits for the counts, and fails at once when one is there that should not be."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (counted := end.statistics()) != wanted and time.monotonic() < deadline:
        assert all(count <= wanted.get(name, 0) for name, count in counted.items()), (counted, wanted)
        time.sleep(0.01)
    assert counted == wanted


def test_a_gateway_that_is_stopped_is_not_waited_for_without_end(uxfrm):
    with topology.Hosts() as hosts:
        gateway = Gateway(uxfrm, hosts.namespace("stopped"))
        try:
            gateway.start([])
            with gateway.asleep():
                for words in (["stat"], ["stat", "--reasons"], ["xfrm", "state"], ["link", "show"], ["dev", "show"]):
                    command = ["ip", "netns", "exec", gateway.namespace.name, uxfrm, *words]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                    # The last three have the exit codes of iproute2.
                    assert done.returncode == (2 if words[0] == "stat" else 1), words
                    assert "has not answered for 5 s" in done.stderr, (words, done.stderr)
            assert gateway.stat()
        finally:
            gateway.close()


def test_counters_as_json_and_by_interval(uxfrm, end):
    """`-j` has the same counts under the same names, `-w` those that change."""
    end.protect(TUNNEL.lines(HERE, THERE))
    namespace, stat = end.network.here, [str(uxfrm), "stat"]
    kernel = json.loads(namespace.run(*stat, "-j"))
    lines = [LINE.fullmatch(line) for line in namespace.run(*stat).splitlines()]
    assert list(kernel.items()) == [(line[1], int(line[2])) for line in lines]
    assert {"in_no_state", "out_no_state"} <= json.loads(namespace.run(*stat, "--reasons", "--json")).keys()
    assert isinstance(json.loads(namespace.run(*stat, "--caches", "-j")), list)
    command = ["ip", "netns", "exec", namespace.name, *stat, "--reasons", "-j", "-w", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        try:
            assert json.loads(watch.stdout.readline())["in_no_state"] == 0
            for number in range(3):
                end.network.far.send(sealed_request(TUNNEL, end, unknown_spi(), bytes([number])))
            grown = []
            while sum(grown) < 3:
                told = json.loads(watch.stdout.readline())
                assert told["seconds"] == 1 and set(told["grown"]) <= {"in_no_state"}, told
                grown.append(told["grown"].get("in_no_state", 0))
            assert sum(grown) == 3
        finally:
            watch.kill()


# Connects without end, as a user who may not ask for the counters.
FLOOD = """
import os, socket
os.setgid(65534), os.setuid(65534)
print("begun", flush=True)
while True:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect("\\0uxfrm/stat")
    except OSError:
        pass
    connection.close()
"""


def test_who_connects_without_end_stalls_no_request(uxfrm):
    with topology.Hosts() as hosts:
        gateway = Gateway(uxfrm, hosts.namespace("flooded"))
        floods = []
        try:
            gateway.start([])
            with gateway.namespace.entered():
                for _ in range(4):
                    floods.append(subprocess.Popen(["python3", "-c", FLOOD], stdout=subprocess.PIPE, text=True))
            assert all(flood.stdout.readline() == "begun\n" for flood in floods)
            for _ in range(5):
                assert "SAD count" in gateway.namespace.run(str(uxfrm), "xfrm", "state", "count")
                assert "XfrmInError" in gateway.stat()
        finally:
            for flood in floods:
                flood.kill()
                flood.wait()
            gateway.close()
