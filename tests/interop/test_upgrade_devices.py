"""`uxfrm upgrade` with offload devices: numbers, windows, counts and limits go on in devices
that are made anew."""

import struct
import subprocess
import time

import pytest

import listener
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_lifecycle import host_state
from test_offload import CRYPTO, PACKET, assert_accounts, client, device, offloaded
from test_upgrade import ARRIVAL_SECONDS, Numbered, bytes_of, frames_to, other_program
from topology import HERE, THERE

UPGRADES = 3
ASSOCIATION = Association(GCM_128, "tunnel", 4, 4, "replay-window 64 flag esn", reqid=7)
# An old number is refused as such: with extended ones it is taken for one of the next upper half,
# and forged.
PLAIN = Association(GCM_128, "tunnel", 4, 4, "replay-window 64", reqid=7)
CONFIGURED, ADDED = "configured", "added"
DEVICE = """
[[device]]
name = "nic0"
profile = "connectx6dx"
"""


class Offloading(topology.PlacedGateways):
    """Two gateways with a device each, whose wire is seen."""

    def _build(self, uxfrm, kind, made=CONFIGURED, association=ASSOCIATION, workers=1):
        super()._build()
        self.uxfrm = uxfrm
        self.here, self.there = (Gateway(uxfrm, namespace, workers=workers) for namespace in (self.left, self.right))
        for gateway, ends in ((self.here, (HERE, THERE)), (self.there, (THERE, HERE))):
            self.callback(gateway.close)
            self.gateways.append(gateway)
            lines = offloaded(kind, association, *ends)
            gateway.start(lines if made == CONFIGURED else (), more=CONTROLLED + (DEVICE if made == CONFIGURED else ""))
            if made == ADDED:
                client(uxfrm, gateway.namespace, "dev", "add nic0 over wire0 profile connectx6dx")
                for line in lines:
                    client(uxfrm, gateway.namespace, "xfrm", line.removeprefix("xfrm "))

    def device(self, gateway, part="states"):
        return device(self.uxfrm, gateway.namespace, part=part)


def settled(namespace):
    """What `host_state` says once it stays so: routes follow policies a moment later."""
    before, now = None, host_state(namespace)
    while now != before:
        time.sleep(0.5)
        before, now = now, host_state(namespace)
    return now


def counted(state):
    """What of a state on a device goes on. In kind crypto numbers and bytes are the engine's,
    and the device is told of them."""
    own = ("bytes", "oseq", "seq") if state["kind"] == PACKET else ()
    return {name: state[name] for name in ("dir", "kind", "spi", "packets", *own)}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("made", [CONFIGURED, ADDED])
@pytest.mark.parametrize("kind", [PACKET, CRYPTO])
def test_no_packet_is_lost_and_counts_go_on(kind, made, workers, uxfrm):
    with Offloading(uxfrm, kind, made, ASSOCIATION, workers) as both:
        hosts = [settled(both.left), settled(both.right)]
        numbered = Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4])
        back = Numbered(both.right, both.left, THERE.inner[4], HERE.inner[4])
        with numbered, back:
            for gateway in both.gateways * UPGRADES:
                numbered.wait(100)
                before = gateway.pid
                assert "has taken over" in gateway.upgrade()
                assert gateway.pid != before
            numbered.wait(100)
        for direction in (numbered, back):
            assert direction.refused == 0
            assert direction.lost() == [], f"{both.here.statistics()} {both.there.statistics()} {both.device(both.there)}"
            assert len(direction.arrived) == len(set(direction.arrived)), "none twice"
        assert [host_state(both.left), host_state(both.right)] == hosts, "interfaces are the same"
        for gateway, sent in ((both.here, numbered.sent), (both.there, back.sent)):
            found = both.device(gateway)
            assert_accounts(found)
            assert sum(found["queues"]) == found["rx"]["passed"]
            assert found["drops"] == {} and gateway.statistics() == {}
            [out] = [state for state in found["states"] if state["dir"] == "out"]
            assert out["packets"] >= sent
            if kind == PACKET:
                shown = gateway.ip("-s xfrm state")
                assert (str(out["bytes"]), str(out["packets"])) in bytes_of(shown), shown
            before = [counted(state) for state in found["states"]]
            gateway.upgrade()
            assert sorted(map(str, map(counted, both.device(gateway)["states"]))) == sorted(map(str, before))
        client(uxfrm, both.left, "dev", "del nic0")
        assert "nic0" not in both.left.ip("link"), "no process holds the TUN"
        for gateway in both.gateways:
            gateway.stop()


@pytest.mark.parametrize("kind", [PACKET, CRYPTO])
def test_no_number_or_iv_is_used_twice(kind, uxfrm):
    with Offloading(uxfrm, kind) as both:
        both.between.seen()
        with Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4]) as numbered:
            for _ in range(UPGRADES):
                numbered.wait(100)
                both.here.upgrade()
            numbered.wait(100)
        esp = [frame for frame in frames_to(both.between.seen(), THERE.outer[4]) if wire.protocol(frame) == "esp"]
        assert len(esp) >= numbered.sent
        numbers, ivs = [struct.unpack("!I", frame[38:42])[0] for frame in esp], [frame[42:50] for frame in esp]
        assert sorted(numbers) == list(range(1, len(esp) + 1)), "none is missing and none is there twice"
        assert len(set(ivs)) == len(ivs)


@pytest.mark.parametrize("kind", [PACKET, CRYPTO])
def test_what_was_received_before_is_not_received_again(kind, uxfrm):
    with Offloading(uxfrm, kind, CONFIGURED, PLAIN) as both:
        both.between.seen()
        with Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4]) as numbered:
            numbered.wait(200)
            both.there.upgrade()
            numbered.wait(200)
        both.there.upgrade()
        replayed = [frame for frame in frames_to(both.between.seen(), THERE.outer[4]) if wire.protocol(frame) == "esp"]
        delivered = bytes_of(both.there.ip("-s xfrm state"))
        for frame in replayed:
            both.between.send(frame)
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while (refused := both.there.statistics().get("XfrmInStateSeqError", 0)) < len(replayed):
            assert time.monotonic() < deadline, f"{refused} of {len(replayed)}:\n{both.there.stat()}"
            time.sleep(0.05)
        assert bytes_of(both.there.ip("-s xfrm state")) == delivered, "nothing more was let through"
        before = both.there.statistics()
        both.there.upgrade()
        assert both.there.statistics() == before, "drops are counted on, and once"


@pytest.mark.parametrize("kind", [PACKET, CRYPTO])
def test_a_limit_is_met_where_it_would_have_been(kind, uxfrm):
    """Of packets: the soft one before, the hard one behind an upgrade; each is told once."""
    association = Association(GCM_128, "tunnel", 4, 4, "replay-window 64 limit packet-soft 20 limit packet-hard 40", reqid=7)
    with Offloading(uxfrm, kind, CONFIGURED, association) as both:
        heard = both.here.directory / "monitor"
        told = lambda word: [line.strip() for line in heard.read_text().splitlines()].count(word)
        with open(heard, "w") as file, listener.of_gateway(both.left, uxfrm, uxfrm, "xfrm", "monitor", "expire", stdout=file):
            ping(both, 30)
            wait_until(lambda: told("hard 0") == 2, heard.read_text)
            both.here.upgrade()
            ping(both, 5)
            both.here.upgrade()
            ping(both, 10, check=False)
            wait_until(lambda: told("hard 1") >= 1, heard.read_text)
            assert told("hard 0") == 2, "the soft one is told once of each state"
            assert both.here.statistics().get("XfrmOutNoStates", 0) + both.here.statistics().get("XfrmOutStateExpired", 0) > 0


def ping(both, count, check=True):
    command = ["ping", "-n", "-c", str(count), "-i", "0.01", "-W", "1", "-I", HERE.inner[4], THERE.inner[4]]
    return both.left.run(*command, check=check)


def wait_until(condition, why):
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


def test_what_was_set_stays_and_who_listens_hears_on(uxfrm, tmp_path):
    """Virtual functions and their trust, rules of the flow director, a profile from a file,
    table sizes, a link that is down."""
    profile = tmp_path / "own.toml"
    profile.write_text('name = "own"\nesn = true\nsegmentation = true\n[steering]\nqueues = 4\nrules = 16\n')
    with topology.PlacedGateways() as network:
        gateway = network.gateway(uxfrm, network.left)
        gateway.start(more=CONTROLLED)
        dev = lambda words: client(uxfrm, network.left, "dev", words)[1]
        dev(f"add nic0 over wire0 profile {profile} vfs 2 receive 9")
        dev("set nic0 vf 1 trust on")
        dev("flow nic0 -U flow-type tcp4 dst-port 80 action 2 loc 3")
        dev("add nic1 profile niantic")
        dev("set nic1 down")
        profile.unlink()
        before = [device(uxfrm, network.left, name) for name in ("nic0", "nic1")]
        assert before[0]["flows"] and before[1]["link"] == "down"
        with open(gateway.directory / "events", "w") as heard:
            events = subprocess.Popen(["ip", "netns", "exec", network.left.name, uxfrm, "dev", "events"], stdout=heard)
        try:
            wait_until(lambda: is_heard(dev, gateway), gateway.log)
            gateway.upgrade()
            assert [device(uxfrm, network.left, name) for name in ("nic0", "nic1")] == before
            dev("set nic1 up")
            wait_until(lambda: "link-up" in (gateway.directory / "events").read_text(), (gateway.directory / "events").read_text)
            assert "link-down" not in (gateway.directory / "events").read_text(), "what was told before is not told again"
        finally:
            events.kill()
            events.wait()
        gateway.stop()
        assert "nic" not in network.left.ip("link")


def is_heard(dev, gateway):
    """Whether who listens is known: another device comes and goes until they hear of it."""
    dev("add nic9 profile unlimited")
    dev("del nic9")
    return "nic9" in (gateway.directory / "events").read_text()


def test_where_another_can_t_take_over_devices_run_on(uxfrm):
    with Offloading(uxfrm, PACKET) as both:
        with Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4]) as numbered:
            numbered.wait(100)
            binary, why = other_program(both.here)
            assert why in both.here.upgrade(binary, check=False)
            numbered.wait(100)
            assert "has taken over" in both.here.upgrade()
            numbered.wait(100)
        assert numbered.lost() == [] and numbered.refused == 0
