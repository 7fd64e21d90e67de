"""`uxfrm upgrade` with tunnels and receive ports: none is lost, nor a packet in them; counts and
numbers go on."""

import contextlib
import json
import re
import struct

import pytest

import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_lifecycle import host_state
from test_tunnel import INSIDE, Case, drops
from test_upgrade import Numbered, other_program
from topology import HERE, THERE

UPGRADES = 3
OUR_IN, THEIR_IN, LENGTH = INSIDE[4]
CASES = [
    Case("ipip", 4, "fou"),
    Case("ipip", 4),
    Case("gre", 4, "none", "key 7 seq csum"),
    Case("gre", 4, "gue-csum"),
    Case("ip6tnl", 4, "fou-csum"),
    Case("ip6gre", 4),
]
BY_FILES, BY_CLIENTS = "files", "clients"


class Tunnelled(topology.PlacedGateways):
    """A tunnel between two gateways, whose wire is seen."""

    def _build(self, uxfrm, case, made_by, protection=None):
        super()._build()
        self.here, self.there = (Gateway(uxfrm, namespace) for namespace in (self.left, self.right))
        for gateway, ends, inside in ((self.here, (HERE, THERE), OUR_IN), (self.there, (THERE, HERE), THEIR_IN)):
            self.callback(gateway.close)
            self.gateways.append(gateway)
            lines = protection.lines(*ends) if protection else ()
            files = case.lines(*ends) if made_by == BY_FILES else []
            gateway.start(lines, more=CONTROLLED + tunnels(gateway, files))
            if made_by == BY_CLIENTS:
                for line in case.lines(*ends):
                    client(gateway, line)
                client(gateway, "link change tun1 up type " + case.kind)
            gateway.namespace.address("tun1", f"{inside}/{LENGTH}")

    @contextlib.contextmanager
    def numbered(self):
        forth = Numbered(self.left, self.right, OUR_IN, THEIR_IN)
        back = Numbered(self.right, self.left, THEIR_IN, OUR_IN)
        with forth, back:
            yield forth
        for direction, gateway in ((forth, self.here), (back, self.there)):
            assert direction.refused == 0
            assert direction.lost() == [], f"{drops(self.here)} {drops(self.there)} {gateway.log()}"
            assert len(direction.arrived) == len(set(direction.arrived)), "none twice"


def tunnels(gateway, lines):
    """The TOML that names a file of these lines, which is written."""
    batch = gateway.directory / "tunnels.batch"
    batch.write_text("".join(f"ip {line}\n" for line in lines))
    return f"\n[tunnel]\nbatch = [{json.dumps(str(batch))}]\n"


def client(gateway, words):
    """`uxfrm link` or `uxfrm fou`."""
    words = words.split()
    options = [words.pop(0)] if words[0].startswith("-") else []
    what, *rest = words
    return gateway.namespace.run(str(gateway._binary), what, *options, *rest)


def shown(gateway):
    """Tunnels as `ip -d link` shows them, and receive ports."""
    return client(gateway, "link show"), client(gateway, "fou show")


def counted(gateway):
    """What tunnels carried, and receive ports."""
    lines = gateway.namespace.run(str(gateway._binary), "stat", "--reasons").splitlines()
    counts = {name: int(count) for name, count in (line.split() for line in lines)}
    return {name: count for name, count in counts.items() if re.match(r"(tunnel|fou6?)_\w+_(packets|bytes)$", name)}


@pytest.mark.parametrize("made_by", [BY_FILES, BY_CLIENTS])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_packet_in_a_tunnel_is_lost(case, made_by, uxfrm):
    with Tunnelled(uxfrm, case, made_by) as made:
        before, hosts = [shown(gateway) for gateway in made.gateways], [host_state(made.left), host_state(made.right)]
        with made.numbered() as numbered:
            for gateway in made.gateways * UPGRADES:
                numbered.wait(100)
                assert "has taken over" in gateway.upgrade()
            numbered.wait(100)
        assert [shown(gateway) for gateway in made.gateways] == before, "tunnels and ports are as they were"
        assert [host_state(made.left), host_state(made.right)] == hosts, "interfaces, addresses and routes as well"
        assert drops(made.here) == drops(made.there) == {}
        counts = counted(made.here)
        assert counts["tunnel_tun1_sent_packets"] >= numbered.sent, "counts go on"
        if case.encap != "none":
            family = "6" if case.outer == 6 else ""
            assert counts[f"fou{family}_5555_received_packets"] == counts["tunnel_tun1_received_packets"]
        client(made.here, "link del tun1")
        assert "tun1" not in made.left.ip("link"), "no process holds the TUN"
        for gateway in made.gateways:
            gateway.stop()


def test_numbers_of_gre_go_on(uxfrm):
    """None is sent twice, and none that was received before is received again."""
    case = Case("gre", 4, "none", "key 7 seq")
    with Tunnelled(uxfrm, case, BY_FILES) as made:
        made.between.seen()
        with made.numbered() as numbered:
            for gateway in made.gateways:
                numbered.wait(100)
                gateway.upgrade()
            numbered.wait(100)
        sent = [frame for outgoing, frame in made.between.seen() if outgoing and wire.protocol(frame) == case.on_the_wire]
        numbers = [struct.unpack("!I", frame[42:46])[0] for frame in sent]
        assert numbers == list(range(len(sent))), "none is missing and none is there twice"
        made.there.upgrade()
        before = counted(made.there)["tunnel_tun1_received_packets"]
        made.between.send(sent[0])
        made.between.send(sent[-1])
        made.left.ping(OUR_IN, THEIR_IN)
        assert drops(made.there) == {"tunnel_in_gre_sequence": 2}
        assert counted(made.there)["tunnel_tun1_received_packets"] > before


def test_a_flow_keeps_its_source_port(uxfrm):
    case = Case("ipip", 4, "fou")
    with Tunnelled(uxfrm, case, BY_FILES) as made:
        made.between.seen()
        with made.numbered() as numbered:
            numbered.wait(100)
            made.here.upgrade()
            numbered.wait(100)
        frames = [frame for outgoing, frame in made.between.seen() if outgoing and wire.protocol(frame) == case.on_the_wire]
        datagrams = [frame for frame in frames if frame[42 + 9] == wire.UDP]
        assert len(datagrams) >= numbered.sent and len({frame[34:36] for frame in datagrams}) == 1


def test_a_tunnel_within_esp(uxfrm):
    with Tunnelled(uxfrm, Case("gre", 4, "gue-csum"), BY_FILES, Association(GCM_128, "transport", 4, 4)) as made:
        made.between.seen()
        with made.numbered() as numbered:
            for gateway in made.gateways * UPGRADES:
                numbered.wait(100)
                gateway.upgrade()
            numbered.wait(100)
        wire.assert_only("esp", made.between.seen())


def test_where_another_can_t_take_over_tunnels_run_on(uxfrm):
    with Tunnelled(uxfrm, Case("ipip", 4, "fou"), BY_FILES) as made:
        before = shown(made.here)
        with made.numbered() as numbered:
            numbered.wait(100)
            binary, why = other_program(made.here)
            assert why in made.here.upgrade(binary, check=False)
            numbered.wait(100)
            assert shown(made.here) == before
            assert "has taken over" in made.here.upgrade()
            numbered.wait(100)
        assert drops(made.here) == {}


def test_what_files_said_is_known(uxfrm):
    """Their tunnels follow them at a reload, and those of clients stay."""
    with Tunnelled(uxfrm, Case("ipip", 4, "fou"), BY_FILES) as made:
        gateway = made.here
        client(gateway, f"link add tun2 type gre remote {THERE.outer[4]} local {HERE.outer[4]} key 9")
        client(gateway, "fou add port 5556 gue")
        gateway.upgrade()
        said = made.left.run(str(gateway._binary), "reload")
        assert said == "nothing is different\n"
        tunnels(gateway, [])
        said = made.left.run(str(gateway._binary), "reload")
        assert said.splitlines() == ["- tunnel tun1", "- receive port 5555"]
        assert "tun2" in client(gateway, "link show") and "tun1" not in client(gateway, "link show")
        assert client(gateway, "fou show") == "port 5556 gue\n"
        gateway.upgrade()
        assert client(gateway, "fou show") == "port 5556 gue\n"
