"""What a gateway in host mode forwards leaves protected or not at all, also where somebody's rules
lead past uxfrm's, or take these away.

Routes bring what is forwarded to uxfrm, behind a rule of its own. Administrators' rules mostly
stand before that one, and who manages the network may take it away, as systemd-networkd does
when it starts.
"""


import pytest

import echo
import patience
import prerequisite
import topology
import wire
from gateway import Gateway
from namespace import UNANSWERED_SECONDS, ping_command
from test_inline import HOSTS, lines

COUNT = 3


class HostModeSites(topology.Sites):
    """`Sites`, whose gateways forward by the host's stack."""

    def _build(self, uxfrm):
        super()._build()
        self.here, self.there = (Gateway(uxfrm, namespace) for namespace in (self.left, self.right))
        for gateway in (self.here, self.there):
            self.callback(gateway.close)
            self.gateways.append(gateway)

    def start(self, guard):
        self.here.start(lines(True), guard=guard)
        self.there.start(lines(False), guard="off")
        self.reach()
        self.led = self.leads()

    def reach(self):
        for family in (4, 6):
            self.left_host.ping(*HOSTS[family])
        wire.assert_only("esp", self.between.seen())

    def try_to_reach(self, family):
        self.left_host.run(*ping_command(*HOSTS[family], echo.MARKER, COUNT, seconds=UNANSWERED_SECONDS).split(), check=False)

    def leads(self):
        """The rules and routes by which the gateway gets what it is to protect."""
        asked = [f"{family}{what}" for family in ("", "-6 ") for what in ("rule", "route show table all")]
        lines = [line.split() for words in asked for line in self.left.ip(words).splitlines()]
        return sorted(line for line in lines if {"30000", "30001"}.intersection(line))

    def reaches_again(self):
        patience.wait_for(lambda: self.leads() == self.led, lambda: f"{self.leads()} instead of {self.led}")
        self.between.seen()
        self.reach()


@pytest.fixture
def sites(uxfrm):
    prerequisite.packet_filter()
    with HostModeSites(uxfrm) as made:
        yield made


def test_what_other_rules_lead_past_uxfrm_does_not_leave_plain(sites):
    """Where nobody says which priority a rule has, the kernel puts it before uxfrm's."""
    sites.start("require")
    sites.left.ip("rule add from 10.1.0.0/24 table 100")
    sites.left.ip("route add default via 10.9.0.2 table 100")
    sites.try_to_reach(4)
    wire.assert_no_plaintext(sites.between.seen())
    assert sites.here.statistics()["XfrmOutError"] == COUNT
    sites.left.ip("rule del from 10.1.0.0/24 table 100")
    sites.reach()
    sites.here.stop()


def test_rules_that_somebody_takes_away_come_back(sites):
    """Without the guard, so that it is the rules that make it."""
    sites.start("off")
    for family in ("", "-6 "):
        sites.left.ip(f"{family}rule flush")
        sites.left.ip(f"{family}rule add pref 32766 table main")
    sites.reaches_again()
    assert sites.here.log().count("somebody has removed the rule") >= 1
    sites.here.stop()
    assert "30000" not in sites.left.ip("rule")


def test_routes_that_somebody_takes_away_come_back(sites):
    sites.start("off")
    for family in ("", "-6 "):
        for table in (30000, 30001):
            sites.left.ip(f"{family}route flush table {table}")
    sites.reaches_again()
    sites.here.stop()


def test_nothing_leaves_plain_while_rules_are_away(sites):
    """The gateway is stopped meanwhile: it is the guard that keeps in what is forwarded."""
    sites.start("require")
    with sites.here.asleep():
        sites.left.ip("rule flush")
        sites.left.ip("rule add pref 32766 table main")
        sites.try_to_reach(4)
        wire.assert_no_plaintext(sites.between.seen())
    sites.reaches_again()
    sites.here.stop()
