"""Debian's strongSwan, unmodified: charon under `uxfrm exec` at both ends. For the networks see topology.Sites."""

import re
import time

import pytest

import echo
import ike
import prerequisite
import topology
import wire
from ike import End
from probes import Probes

LEFT_HOST, RIGHT_HOST = "10.1.0.2", "10.2.0.2"
TRANSFER_BYTES = 1 << 20
TRAP = {"start_action": "trap"}


@pytest.fixture(scope="module")
def sites():
    prerequisite.strongswan()
    with topology.Sites() as made:
        yield made


@pytest.fixture
def running():
    """What a test starts in the networks; it ends with the test."""
    with topology.Hosts() as made:
        yield made


@pytest.fixture
def ends(uxfrm, sites, running):
    left, right = End(sites.left, "10.9.0.1", "10.1.0.0/24"), End(sites.right, "10.9.0.2", "10.2.0.0/24")
    for end in (left, right):
        end.start(running, uxfrm)
    sites.between.seen()
    return left, right


def exchange(sites):
    """Ping and a TCP flow between the hosts behind the gateways."""
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    sites.right_host.ping(RIGHT_HOST, LEFT_HOST)
    with sites.left_host.entered():
        echo.transfer(LEFT_HOST, RIGHT_HOST, TRANSFER_BYTES)


def counted(end, direction):
    """The (bytes, packets) that `swanctl --list-sas` has for the youngest SA."""
    lines = re.findall(rf"^ +{direction} +[0-9a-f]+, +(\d+) bytes, +(\d+) packets", end.charon.sas(), re.M)
    return tuple(map(int, lines[-1]))


def spis(frames):
    """The SPIs of what went out as ESP, in the order of their first use."""
    seen = (frame[34:38].hex() for outgoing, frame in frames if outgoing and wire.protocol(frame) == "esp")
    return list(dict.fromkeys(seen))


def assert_cut_off(sites):
    """The hosts do not reach each other, and nothing of it is to be read on the wire."""
    sites.between.seen()
    for host, source, destination in [(sites.left_host, LEFT_HOST, RIGHT_HOST), (sites.right_host, RIGHT_HOST, LEFT_HOST)]:
        answer = host.run(*"ping -q -c 3 -i 0.02 -W 1".split(), "-p", echo.MARKER.hex(), "-I", source, destination, check=False)
        assert "100% packet loss" in answer
    wire.assert_no_plaintext(sites.between.seen())


def test_a_tunnel_between_two_nets(ends, sites):
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    exchange(sites)
    wire.assert_only("esp", sites.between.seen())
    for end in ends:
        for direction in ("in", "out"):
            size, packets = counted(end, direction)
            assert size > TRANSFER_BYTES and packets > 6
    left.charon.swanctl("--terminate", "--ike", "to")
    for end in ends:
        assert "esp" not in end.states()
        assert "10.2.0.0/24" not in end.policies()


def test_no_packet_is_lost_when_charon_rekeys(ends, sites):
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    probes = Probes(sites.left_host, LEFT_HOST, RIGHT_HOST), Probes(sites.right_host, RIGHT_HOST, LEFT_HOST)
    for end, what in [(left, "--child"), (right, "--child"), (left, "--ike"), (right, "--ike")]:
        end.charon.swanctl("--rekey", what, "net" if what == "--child" else "to")
        time.sleep(0.3)
    lost = [probe.lost() for probe in probes]
    assert all(probe.sent > 50 for probe in probes)
    assert lost == [[], []]
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    assert len(spis(frames)) == 3, "two times a new SA"


def test_a_limit_of_packets_makes_charon_rekey(ends, sites):
    left, right = ends
    limits = {"life_packets": 100, "rekey_packets": 50, "rand_packets": 0}
    left.charon.load(ike.connection(left, right, limits))
    right.charon.load(ike.connection(right, left))
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST, count=80)
    left.charon.wait_for("CHILD_SA closed")
    assert len(spis(sites.between.seen())) > 1
    assert counted(left, "out")[1] < 50


def test_a_dead_peer_is_noticed(ends, sites):
    left, right = ends
    ike.connect(left, right, TRAP | {"dpd_action": "trap"}, dpd_delay="1s")
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    right.charon.kill()
    left.charon.wait_for("giving up after 2 retransmits")
    left.charon.wait_for("deleting policy")
    assert "esp" not in re.findall("proto (.*?) ", left.states())
    assert_cut_off(sites)


def test_the_first_packet_brings_the_tunnel_up_and_arrives(ends, sites):
    left, right = ends
    ike.connect(left, right, TRAP)
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST, count=1)
    exchange(sites)
    wire.assert_only("esp", sites.between.seen())


def test_without_charon_nothing_leaves_in_the_clear(ends, sites):
    """SIGKILL of one charon: the tunnel stays; its states expire or not, but never is there another way."""
    left, right = ends
    ike.connect(left, right, TRAP)
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    for end in ends:
        end.charon.kill()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    for end in ends:
        end.gateway.ip("xfrm state flush")
    assert_cut_off(sites)


def test_without_uxfrm_nothing_leaves_in_the_clear(ends, sites):
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    for end in ends:
        end.gateway.kill()
    assert_cut_off(sites)
