"""A kernel that does not take what the guard needs, as it is out of memory: whoever asked hears of
it, and it is tried again without haste.

The network is test_guard's. The kernel is real, but some transactions do not reach it
(refusing.py).
"""

import contextlib
import socket
import time

import pytest

import echo
import patience
import prerequisite
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from namespace import UNANSWERED_SECONDS, ping_command
from refusing import DELETE_RULE, Refusing
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4)
SECONDS = patience.SECONDS

PORT = 7100
BETWEEN = f"src {THERE.outer[4]}/32 dst {HERE.outer[4]}/32"
PASSES = f"xfrm policy add {BETWEEN} proto udp dir in priority 1 action allow"
DROPS = f"xfrm policy add {BETWEEN} dir in priority 5 action block"
BEHIND = "routes or guard don't follow the policies"
AGAIN = "routes and guard follow the policies again"


class Refused(topology.PlacedGateways):
    """The left gateway guards."""

    def _build(self, uxfrm, directory):
        super()._build()
        self.kernel = Refusing(directory, uxfrm)
        self.here = self.gateway(self.kernel.binary, self.left)
        self._uxfrm = str(uxfrm)
        self.here.start([PASSES, DROPS], guard="require", more=CONTROLLED)

    def xfrm(self, words):
        return self.left.run(self._uxfrm, "xfrm", *words.split(), check=False)

    def policies(self):
        return self.xfrm("policy list").count("src ")

    def passes(self):
        """Whether a plain datagram comes in."""
        with contextlib.ExitStack() as stack:
            with self.left.entered():
                here = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with self.right.entered():
                there = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            here.bind((HERE.outer[4], PORT))
            here.settimeout(2)
            there.sendto(b"plain", (HERE.outer[4], PORT))
            try:
                return here.recv(16) == b"plain"
            except TimeoutError:
                return False

    def says(self, text, seconds=SECONDS):
        """How often, once it does."""
        deadline = time.monotonic() + seconds
        while text not in self.here.log() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.here.log().count(text)


@pytest.fixture
def network(uxfrm, tmp_path):
    prerequisite.packet_filter()
    prerequisite.programs(cc="gcc libc6-dev")
    with Refused(uxfrm, tmp_path) as made:
        yield made


@pytest.mark.parametrize("words", [f"policy delete {BETWEEN} proto udp dir in", "policy flush"])
def test_who_deletes_a_policy_hears_that_its_rule_stays(network, words):
    """It lets pass: whoever is told that it has gone relies on that nothing comes in plain any
    more."""
    assert network.passes()
    network.kernel.refuse()
    assert "does not let go of what the policy needed" in network.xfrm(words)
    assert network.policies() == 2
    assert network.passes()
    network.kernel.relent()
    assert network.xfrm(f"policy delete {BETWEEN} proto udp dir in") == ""
    assert not network.passes()
    assert network.policies() == 1
    network.here.stop()


def test_a_default_that_the_guard_can_not_follow_is_not_in_force(network):
    network.kernel.refuse()
    assert "does not take what the policy needs" in network.xfrm("policy setdefault in block")
    assert "in:  accept" in network.xfrm("policy getdefault")
    network.kernel.relent()
    assert network.xfrm("policy setdefault in block") == ""
    assert "in:  block" in network.xfrm("policy getdefault")
    network.here.stop()


def test_what_the_kernel_refuses_is_tried_again_without_haste_and_told_once(network):
    network.kernel.refuse(DELETE_RULE)
    # It comes, and what it takes the place of does not go: nothing but a new table helps.
    assert "does not take" in network.xfrm(f"policy update {BETWEEN} proto udp dir in priority 2 action block")
    assert network.says(BEHIND) == 1
    before, begun = network.kernel.count(), time.monotonic()
    patience.wait_for(lambda: network.kernel.count() >= before + 2, "it is not tried again")
    assert network.kernel.count() - before <= time.monotonic() - begun + 1
    assert network.says(BEHIND, 0) == 1
    assert network.passes(), "as before: it is the policy of before that is in force"
    network.kernel.relent()
    assert network.xfrm(f"policy add {BETWEEN} proto tcp dir in priority 1 action allow") == ""
    assert network.passes(), "a change of policies makes all right"
    assert network.says(AGAIN) == 1
    network.here.stop()


def test_a_policy_that_went_by_its_limit_goes_from_the_kernel_when_that_lets_go(network):
    """Nobody asked, and nobody can be told but by the log."""
    network.xfrm(f"policy update {BETWEEN} proto udp dir in priority 1 action allow limit time-hard 1")
    network.kernel.refuse()
    assert network.says(BEHIND) == 1
    assert network.policies() == 1, "it does not outlive its limit"
    network.kernel.relent()
    assert network.says(AGAIN) == 1
    assert not network.passes()
    network.here.stop()


def test_a_guard_that_is_flushed_away_is_put_up_again(uxfrm, tmp_path):
    """As the services of distributions do when they are reloaded, on kernels where no table is
    one socket's."""
    prerequisite.programs(nft="nftables")
    with topology.PlacedGateways() as network:
        here = network.gateway(Refusing(tmp_path, uxfrm, "ENOMEM", "-DOLD").binary, network.left)
        here.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
        for times in range(1, 4):
            network.left.run("nft", "flush", "ruleset")
            deadline = time.monotonic() + SECONDS
            while here.log().count("it is put up again") < times:
                assert time.monotonic() < deadline, f"it was not noticed:\n{here.log()}"
                time.sleep(0.01)
            assert "uxfrm-uxfrm0" in network.left.run("nft", "list", "tables")
            network.between.seen()
            network.left.run(*ping_command(HERE.inner[4], THERE.inner[4], echo.MARKER, 3, seconds=UNANSWERED_SECONDS).split(), check=False)
            seen = network.between.seen()
            assert any(wire.protocol(frame) == "esp" for _, frame in seen)
            wire.assert_no_plaintext(seen)
        here.stop()
