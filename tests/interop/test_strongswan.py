"""Debian's strongSwan, unmodified: charon under `uxfrm exec` at both ends. For the networks see
topology.Sites."""

import dataclasses
import re
import time

import pytest

import echo
import ike
import patience
import prerequisite
import topology
import wire
from gateway import CONTROLLED
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


def assert_cut_off(sites):
    """The hosts do not reach each other, and nothing of it is to be read on the wire."""
    sites.between.seen()
    for host, source, destination in [(sites.left_host, LEFT_HOST, RIGHT_HOST), (sites.right_host, RIGHT_HOST, LEFT_HOST)]:
        answer = host.run(*"ping -q -c 3 -i 0.02 -W 0.3".split(), "-p", echo.MARKER.hex(), "-I", source, destination, check=False)
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
        end.wait_for_no_states()
        assert "10.2.0.0/24" not in end.policies()


def test_no_packet_is_lost_when_charon_rekeys(ends, sites):
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    probes = Probes(sites.left_host, LEFT_HOST, RIGHT_HOST), Probes(sites.right_host, RIGHT_HOST, LEFT_HOST)
    for end, what in [(left, "--child"), (right, "--child"), (left, "--ike"), (right, "--ike")]:
        end.charon.swanctl("--rekey", what, "net" if what == "--child" else "to")
        for probe in probes:
            probe.wait_for(20)
    lost = [probe.lost() for probe in probes]
    assert lost == [[], []], [end.gateway.statistics() for end in ends]
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    assert len(wire.spis_sent(frames)) == 3, "two times a new SA"


def test_a_limit_of_packets_makes_charon_rekey(ends, sites):
    left, right = ends
    limits = {"life_packets": 100, "rekey_packets": 50, "rand_packets": 0}
    left.charon.load(ike.connection(left, right, limits))
    right.charon.load(ike.connection(right, left))
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST, count=80)
    left.charon.wait_for("CHILD_SA closed")
    assert len(wire.spis_sent(sites.between.seen())) > 1
    assert counted(left, "out")[1] < 50


def test_a_hard_limit_alone_makes_charon_start_anew(ends, sites):
    """Without a soft limit there is no SA for a moment: the trap holds packets back and has
    charon make another."""
    left, right = ends
    left.charon.load(ike.connection(left, right, TRAP | {"life_packets": 50, "rekey_packets": 0}))
    right.charon.load(ike.connection(right, left, TRAP))
    left.charon.initiate()
    sites.left_host.run(*"ping -q -c 60 -i 0.01 -W 0.2 10.2.0.2".split(), check=False)
    left.charon.wait_for("creating delete job for CHILD_SA")
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    assert len(wire.spis_sent(frames)) > 1


def test_a_dead_peer_is_noticed(ends, sites):
    left, right = ends
    ike.connect(left, right, TRAP | {"dpd_action": "trap"}, dpd_delay="1s")
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    right.charon.kill()
    left.charon.wait_for("giving up after 3 retransmits")
    left.wait_for_no_states()
    assert_cut_off(sites)


def test_the_first_packet_brings_the_tunnel_up_and_arrives(ends, sites):
    left, right = ends
    ike.connect(left, right, TRAP)
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST, count=1)
    exchange(sites)
    wire.assert_only("esp", sites.between.seen())


def test_without_charon_nothing_leaves_in_the_clear(ends, sites):
    """SIGKILL of one charon: the tunnel stays; its states expire or not, but never is there
    another way."""
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


def test_charon_finds_a_uxfrm_that_came_back(ends, sites):
    """It hears that its states are gone; its new CHILD_SA brings the policies back as well."""
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    left.gateway.kill()
    left.gateway.start(more=CONTROLLED)
    left.wait_for_states(lambda states: states.count("spi 0x") >= 2)
    sites.between.seen()
    exchange(sites)
    wire.assert_only("esp", sites.between.seen())


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_charon_hears_at_once_that_its_states_are_gone(end, ends, sites):
    """Nobody rekeys, and no packet asks: the connection says that it is to be up."""
    left, right = ends
    ike.connect(left, right, {"start_action": "start", "close_action": "start"})
    left.charon.wait_for("CHILD_SA net{1} established")
    exchange(sites)
    getattr(left.gateway, end)()
    left.gateway.start(more=CONTROLLED)
    left.wait_for_states(lambda states: states.count("spi 0x") >= 2)
    exchange(sites)
    sites.between.seen()
    exchange(sites)
    wire.assert_only("esp", sites.between.seen())


def test_what_charon_protected_is_refused_until_somebody_decides(uxfrm, ends, sites):
    """Both are killed, and uxfrm alone comes back: it is for whoever runs it to let go."""
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    exchange(sites)
    left.gateway.wait_until_written_down("10.1.0.0/24", "10.2.0.0/24")
    left.charon.kill()
    left.gateway.kill()
    left.gateway.start(more=CONTROLLED)
    assert_cut_off(sites)
    assert "uxfrm release" in left.gateway.log()
    assert "dst 10.2.0.0/24 dir out" in left.namespace.run(str(uxfrm), "release")
    assert left.policies() == ""


def test_charon_goes_on_when_uxfrm_is_killed_before_it_answers(ends, sites):
    """The rekeying fails that waits for an SPI, and the next one does not."""
    left, right = ends
    ike.connect(left, right)
    left.charon.initiate()
    with left.gateway.asleep():
        left.charon.swanctl("--rekey", "--child", "net")
        left.charon.wait_for("establishing CHILD_SA net{2}")
        time.sleep(0.2)  # until it has asked
        left.gateway.kill()
    left.gateway.start(more=CONTROLLED)
    left.charon.swanctl("--rekey", "--child", "net")
    left.charon.wait_for("CHILD_SA closed")
    exchange(sites)


def test_a_policy_that_blocks_closes_the_way_until_charon_is_there(uxfrm, sites, running):
    """In a batch file, with a priority below those that charon gives, and another selector: of
    each there is one policy."""
    left, right = End(sites.left, "10.9.0.1", "10.1.0.0/24"), End(sites.right, "10.9.0.2", "10.2.0.0/24")
    for here, there in [(left, right), (right, left)]:
        ways = [f"dst {there.net} dir out", f"src {there.net} dir in", f"src {there.net} dir fwd"]
        block = [f"xfrm policy add {way} action block priority 4000000" for way in ways]
        here.start(running, uxfrm, block)
    assert_cut_off(sites)
    ike.connect(left, right)
    left.charon.initiate()
    exchange(sites)
    left.charon.swanctl("--terminate", "--ike", "to")
    assert_cut_off(sites)


def test_a_tunnel_for_both_families(ends, sites):
    """One SA carries IPv4 and IPv6; with ESN, and CBC and HMAC instead of GCM."""
    left, right = ends
    left.net, right.net = f"{left.net}, fd01::/64", f"{right.net}, fd02::/64"
    ike.connect(left, right, {"esp_proposals": "aes128-sha256-esn"})
    left.charon.initiate()
    exchange(sites)
    sites.left_host.ping("fd01::2", "fd02::2")
    with sites.right_host.entered():
        echo.transfer("fd02::2", "fd01::2", TRANSFER_BYTES)
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    assert len(wire.spis_sent(frames)) == 1
    assert "esn" in left.states()


def test_transport_mode_from_host_to_host(ends, sites):
    left, right = (dataclasses.replace(end, net=f"{end.address}/32") for end in ends)
    ike.connect(left, right, {"mode": "transport", "esp_proposals": "chacha20poly1305"})
    left.charon.initiate()
    sites.left.ping(left.address, right.address)
    with sites.right.entered():
        echo.transfer(right.address, left.address, TRANSFER_BYTES)
    wire.assert_only("esp", sites.between.seen())
    assert "mode transport" in left.policies()


def test_a_road_warrior_gets_an_address(ends, sites):
    """The left end asks for an address and speaks from it, though nothing there is bound to it."""
    left, right = ends
    left.charon.load(ike.connection(left, right, {"local_ts": "dynamic"}, vips="0.0.0.0"))
    right.charon.load(
        ike.connection(right, left, {"remote_ts": "dynamic"}, pools="guests") | {"pools": {"guests": {"addrs": "10.3.0.0/28"}}}
    )
    left.charon.initiate()
    sites.left.run("ping", "-q", "-c", "3", "-i", "0.02", "-W", str(patience.SECONDS), "-p", echo.MARKER.hex(), RIGHT_HOST)
    sites.right_host.ping(RIGHT_HOST, "10.3.0.1")
    with sites.left.entered():
        echo.transfer("10.3.0.1", RIGHT_HOST, TRANSFER_BYTES)
    wire.assert_only("esp", sites.between.seen())
    left.charon.swanctl("--terminate", "--ike", "to")
    # charon takes it away by itself, which may be after it has said that all is closed.
    sites.left.wait_for_no_address("10.3.0.1")


def test_strongswan_s_own_data_plane(uxfrm, sites, running):
    """uxfrm at the left end, libipsec at the right one: that takes only ESP in UDP."""
    left, right = End(sites.left, "10.9.0.1", "10.1.0.0/24"), End(sites.right, "10.9.0.2", "10.2.0.0/24")
    left.start(running, uxfrm)
    right.start_without_uxfrm(running)
    sites.between.seen()
    ike.connect(left, right, encap="yes")
    left.charon.initiate()
    exchange(sites)
    wire.assert_only("esp-in-udp", sites.between.seen())
    left.charon.swanctl("--rekey", "--child", "net")
    exchange(sites)


@pytest.fixture(scope="module")
def sites_with_nat():
    prerequisite.strongswan()
    prerequisite.packet_filter()
    prerequisite.programs(nft="nftables")
    with topology.SitesWithNat() as made:
        yield made


def test_a_nat_between(uxfrm, sites_with_nat, running):
    """Found by IKE: both end up on port 4500. Then the NAT gives the connection another port,
    and the right end follows."""
    sites = sites_with_nat
    left, right = End(sites.left, "192.168.9.2", "10.1.0.0/24"), End(sites.right, "10.9.0.2", "10.2.0.0/24")
    for end in (left, right):
        end.start(running, uxfrm)
    left.charon.load(ike.connection(left, right))
    right.charon.load(ike.connection(right, dataclasses.replace(left, address="%any"), remote={"auth": "psk", "id": left.address}))
    left.charon.initiate()
    exchange(sites)
    frames = sites.between.seen()
    wire.assert_only("esp-in-udp", frames)
    assert set(ports(frames)) <= set(range(20000, 21000))
    for _ in range(2):
        left.charon.swanctl("--rekey", "--child", "net")
        exchange(sites)

    sites.masquerade("30000-30999")
    sites.left_host.run("ping", "-q", "-c", "3", "-i", "0.2", "-W", "0.2", RIGHT_HOST, check=False)
    right.charon.wait_for("XFRM_MSG_MAPPING")
    right.wait_for_states(lambda states: re.search(r" dport 30\d{3} ", states))
    wire.assert_no_plaintext(sites.between.seen())
    exchange(sites)
    frames = sites.between.seen()
    wire.assert_only("esp-in-udp", frames)
    assert set(ports(frames)) <= set(range(30000, 31000))


def ports(frames):
    """The UDP source ports of what was received as ESP in UDP."""
    received = (frame for outgoing, frame in frames if not outgoing and wire.protocol(frame) == "esp-in-udp")
    return [int.from_bytes(frame[34:36], "big") for frame in received]


def test_where_compression_is_wanted_the_tunnel_goes_without(ends, sites):
    left, right = ends
    ike.connect(left, right, {"ipcomp": "yes"})
    left.charon.initiate()
    exchange(sites)
    wire.assert_only("esp", sites.between.seen())
    assert all("proto comp" not in end.states() + end.policies() for end in ends)
