"""charon's `hw_offload` against devices of uxfrm: Debian's strongSwan 5.9.8, unmodified, knows
kind crypto. For the network see topology.Sites."""

import pytest

import ike
import wire
from probes import Probes
from test_offload import assert_accounts, client, device
from test_strongswan import LEFT_HOST, RIGHT_HOST, ends, exchange, running, sites  # noqa: F401, fixtures

PROFILE = "connectx6dx"
OFFLOAD = {"hw_offload": "yes"}
ON_DEVICE = "crypto offload parameters: dev wire0 dir {} mode crypto"
LIFE = 300


@pytest.fixture
def offloading(uxfrm, ends):  # noqa: F811
    """Both ends; the interface that charon finds by its own address is a device."""
    for end in ends:
        client(uxfrm, end.namespace, "dev", f"add wire0 profile {PROFILE}")
    return ends


def sending(uxfrm, end):
    """The SPIs of the states on the device by which packets leave; charon keeps the receiving
    ones a while longer."""
    return {state["spi"] for state in states(uxfrm, end) if state["dir"] == "out"}


def states(uxfrm, end):
    return device(uxfrm, end.namespace, "wire0", "states")["states"]


def test_charon_finds_the_device_and_puts_its_states_there(uxfrm, sites, offloading):  # noqa: F811
    left, right = offloading
    ike.connect(left, right, OFFLOAD)
    left.charon.initiate()
    try:
        exchange(sites)
    except Exception as failure:
        for end in offloading:
            shown = client(uxfrm, end.namespace, "dev", "show wire0 states", check=False)[1]
            failure.add_note(f"{end.gateway.statistics()}\n{shown}\n{client(uxfrm, end.namespace, 'xfrm', 'state')[1]}")
        raise
    wire.assert_only("esp", sites.between.seen())
    for end in offloading:
        shown = client(uxfrm, end.namespace, "xfrm", "state")[1]
        assert all(ON_DEVICE.format(way) in shown for way in ("in", "out")), shown
        counted = [state["packets"] for state in states(uxfrm, end)]
        assert len(counted) == 2 and min(counted) > 6, counted
        assert_accounts(device(uxfrm, end.namespace, "wire0"))
    left.charon.swanctl("--terminate", "--ike", "to")
    for end in offloading:
        end.wait_for_no_states()
        assert states(uxfrm, end) == []


def test_without_a_device_charon_is_told_so(uxfrm, ends):  # noqa: F811
    left, right = ends
    ike.connect(left, right, OFFLOAD)
    with pytest.raises(AssertionError, match="failed"):
        left.charon.initiate()
    right.charon.wait_for("HW offload is not supported by device")


def test_a_limit_of_packets_makes_charon_rekey_on_the_device(uxfrm, sites, offloading):  # noqa: F811
    """charon hears the soft limit, new states are installed on both devices, nothing is lost or
    plain; then the hard limit is one."""
    left, right = offloading
    left.charon.load(ike.connection(left, right, OFFLOAD | {"life_packets": LIFE, "rekey_packets": 150, "rand_packets": 0}))
    right.charon.load(ike.connection(right, left, OFFLOAD))
    left.charon.initiate()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    before = sending(uxfrm, left)
    probes = Probes(sites.left_host, LEFT_HOST, RIGHT_HOST), Probes(sites.right_host, RIGHT_HOST, LEFT_HOST)
    left.charon.wait_for("CHILD_SA closed")
    lost = [probe.lost() for probe in probes]
    assert all(probe.sent > 50 for probe in probes)
    assert lost == [[], []], [end.gateway.statistics() for end in offloading]
    after = sending(uxfrm, left)
    assert after and not before & after, (before, after)
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    assert len(wire.spis_sent(frames)) == 2, "as many generations"
    for end in offloading:
        assert_accounts(device(uxfrm, end.namespace, "wire0"))
    assert_ends_at_the_hard_limit(sites, offloading)


def assert_ends_at_the_hard_limit(sites, ends):  # noqa: F811
    """Nobody can rekey any more: what is behind the limit is dropped."""
    for end in ends:
        end.charon.kill()
    sites.between.seen()
    sites.left_host.run(*f"ping -q -i 0.002 -c {3 * LIFE} -W 0.3".split(), "-I", LEFT_HOST, RIGHT_HOST, check=False)
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    sent = sum(outgoing for outgoing, _ in frames)
    assert 0 < sent <= LIFE, sent
