"""Debian's libreswan, unmodified: pluto under `uxfrm exec` at both ends. For the network see
topology.Sites."""

import dataclasses
import re

import pytest

import echo
import patience
import prerequisite
import topology
import wire
from gateway import CONTROLLED
from ike import End
from namespace import UNANSWERED_SECONDS, ping_command
from pluto import Pluto

LEFT_HOST, RIGHT_HOST = "10.1.0.2", "10.2.0.2"


@pytest.fixture(scope="module")
def sites():
    prerequisite.libreswan()
    with topology.Sites() as made:
        yield made


def ends(sites):
    return End(sites.left, "10.9.0.1", "10.1.0.0/24"), End(sites.right, "10.9.0.2", "10.2.0.0/24")


@pytest.fixture
def plutos(uxfrm, sites, request):
    left, right = ends(sites)
    with topology.Hosts() as running:
        yield [start(running, uxfrm, end, left, right, {"encapsulation": request.param}) for end in (left, right)]


def start(running, uxfrm, end, left, right, words):
    running.gateway(uxfrm, end.namespace).start(more=CONTROLLED)
    return start_pluto(running, uxfrm, end, left, right, words)


def start_pluto(running, uxfrm, end, left, right, words):
    made = Pluto(end.namespace, [uxfrm, "exec", "--"], left, right, words)
    running.callback(made.close)
    made.start()
    return made


@pytest.mark.parametrize("plutos", ["auto"], indirect=True)
def test_a_tunnel_between_two_nets(plutos, sites):
    left, right = plutos
    left.whack("--initiate", "--name", "net")
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    with sites.right_host.entered():
        echo.transfer(RIGHT_HOST, LEFT_HOST, 1 << 20)
    wire.assert_only("esp", sites.between.seen())
    for end in plutos:
        traffic = re.search(r"inBytes=(\d+), outBytes=(\d+)", end.whack("--trafficstatus"))
        assert min(map(int, traffic.groups())) > 1 << 20

    for end, what in [(left, "--rekey-ipsec"), (right, "--rekey-ipsec"), (right, "--rekey-ike")]:
        end.whack(what, "--name", "net")
        sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    frames = sites.between.seen()
    wire.assert_only("esp", frames)
    assert len(wire.spis_sent(frames)) == 2, "two times a new SA"
    left.whack("--terminate", "--name", "net")


@pytest.mark.parametrize("plutos", ["yes"], indirect=True)
def test_esp_in_udp(plutos, sites):
    """On port 4500, of which pluto has a socket for each address."""
    left, right = plutos
    left.whack("--initiate", "--name", "net")
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    wire.assert_only("esp-in-udp", sites.between.seen())
    right.whack("--rekey-ipsec", "--name", "net")
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
    wire.assert_only("esp-in-udp", sites.between.seen())


def test_transport_mode_from_host_to_host(uxfrm, sites):
    left, right = (dataclasses.replace(end, net=None) for end in ends(sites))
    with topology.Hosts() as running:
        plutos = [start(running, uxfrm, end, left, right, {"type": "transport"}) for end in (left, right)]
        # Those before this one said farewell to ports that were closed already.
        sites.between.seen()
        plutos[0].whack("--initiate", "--name", "net")
        sites.left.ping(left.address, right.address)
        with sites.right.entered():
            echo.transfer(right.address, left.address, 1 << 20)
        wire.assert_only("esp", sites.between.seen())
        assert "mode transport" in running.gateways[0].ip("xfrm policy list")


@pytest.mark.parametrize("plutos", ["auto"], indirect=True)
def test_a_trap_brings_the_tunnel_up(plutos, sites):
    """The first packet asks for it, waits, and arrives."""
    plutos[0].whack("--route", "--name", "net")
    sites.between.seen()
    sites.left_host.ping(LEFT_HOST, RIGHT_HOST, count=1)
    wire.assert_only("esp", sites.between.seen())


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("whacked", ["--initiate", "--route"])
def test_pluto_hears_at_once_that_its_states_are_gone(end, whacked, uxfrm, sites):
    """It has a trap in their place; the next packet has it negotiate anew, and arrives."""
    left, right = ends(sites)
    with topology.Hosts() as running:
        plutos = [start(running, uxfrm, each, left, right, {}) for each in (left, right)]
        gateway = running.gateways[0]
        plutos[0].whack(whacked, "--name", "net")
        sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
        # What came less than about a second before a crash may be forgotten (SECURITY.md).
        gateway.wait_until_written_down("10.1.0.0/24", "10.2.0.0/24")
        getattr(gateway, end)()
        sites.between.seen()
        gateway.start(more=CONTROLLED)
        plutos[0].wait_for("received hard EXPIRE")
        patience.wait_for(lambda: "dir out" in gateway.ip("xfrm policy"), "a trap")
        sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
        sites.right_host.ping(RIGHT_HOST, LEFT_HOST)
        wire.assert_only("esp", sites.between.seen())


def test_what_pluto_protected_is_refused_until_it_negotiates(uxfrm, sites):
    """Also what comes from the other end alone, while pluto is killed as well."""
    left, right = ends(sites)
    with topology.Hosts() as running:
        plutos = [start(running, uxfrm, each, left, right, {}) for each in (left, right)]
        gateway = running.gateways[0]
        plutos[0].whack("--initiate", "--name", "net")
        sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
        gateway.wait_until_written_down("10.1.0.0/24", "10.2.0.0/24")
        plutos[0].kill()
        gateway.kill()
        gateway.start(more=CONTROLLED)
        sites.between.seen()
        sites.left_host.run(*ping_command(LEFT_HOST, RIGHT_HOST, echo.MARKER, seconds=UNANSWERED_SECONDS).split(), check=False)
        wire.assert_no_plaintext(sites.between.seen())
        again = start_pluto(running, uxfrm, left, left, right, {})
        again.whack("--initiate", "--name", "net")
        sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
        wire.assert_only("esp", sites.between.seen())


def test_behind_a_nat(uxfrm):
    """The left end is behind a router that hides it; the right one knows it by its name alone."""
    prerequisite.libreswan()
    with topology.SitesWithNat() as sites:
        left = End(sites.left, "192.168.9.2", "10.1.0.0/24")
        right = End(sites.right, "10.9.0.2", "10.2.0.0/24")
        names = {"leftid": "@left", "rightid": "@right"}
        there = start(sites, uxfrm, right, left, right, names | {"left": "%any"})
        here = start(sites, uxfrm, left, left, right, names)
        here.whack("--initiate", "--name", "net")
        sites.left_host.ping(LEFT_HOST, RIGHT_HOST)
        sites.right_host.ping(RIGHT_HOST, LEFT_HOST)
        wire.assert_only("esp-in-udp", sites.between.seen())
        assert "10.9.0.9" in there.whack("--trafficstatus") + there.whack("--status")
