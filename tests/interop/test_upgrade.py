"""`uxfrm upgrade`: another process takes the gateway's place, and no packet is lost; where it
can't, the one that runs goes on."""

import contextlib
import difflib
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

import ike
import listener
import patience
import prerequisite
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from ike import End
from namespace import UNANSWERED_SECONDS
from test_acquire import Monitor, Trapped, is_heard
from test_lifecycle import host_state
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4)
STATIC = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 128")
UPGRADES = 5
RECEIVE_BUFFER_FORCED = 33  # SO_RCVBUFFORCE, which Python has no name for
PAUSE_SECONDS = 0.0001
ARRIVAL_SECONDS = patience.SECONDS


class Numbered:
    """Numbered datagrams from one namespace to another, all the time."""

    def __init__(self, here, there, source, destination):
        with there.entered():
            self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCED, 64 << 20)
        self._far.bind((destination, 7300))
        self._far.settimeout(0.2)
        with here.entered():
            self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._near.bind((source, 0))
        self._destination = (destination, 7300)
        self._ends = threading.Event()
        self.sent, self.refused, self.arrived = 0, 0, []
        self._sender, self._receiver = (threading.Thread(target=work) for work in (self._send, self._receive))

    def _send(self):
        while not self._ends.is_set():
            try:
                self._near.sendto(struct.pack("!Q", self.sent) + b"UXFRM-PLAINTEXT!" * 4, self._destination)
                self.sent += 1
            except OSError:
                self.refused += 1
            time.sleep(PAUSE_SECONDS)

    def _receive(self):
        deadline = None
        while True:
            try:
                self.arrived.append(struct.unpack("!Q", self._far.recv(2048)[:8])[0])
            except TimeoutError:
                pass
            if not self._sender.is_alive():
                deadline = deadline or time.monotonic() + ARRIVAL_SECONDS
                if len(self.arrived) >= self.sent or time.monotonic() > deadline:
                    return

    def wait(self, count):
        """Until so many more have arrived."""
        until, deadline = len(self.arrived) + count, time.monotonic() + ARRIVAL_SECONDS
        while len(self.arrived) < until:
            assert time.monotonic() < deadline, f"{len(self.arrived)} of {self.sent} datagrams arrived"
            time.sleep(0.01)

    def __enter__(self):
        self._sender.start()
        self._receiver.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._sender.join()
        self._receiver.join()
        self._near.close()
        self._far.close()

    def lost(self):
        return sorted(set(range(self.sent)) - set(self.arrived))


class Both(topology.PlacedGateways):
    """Two gateways, whose wire is seen."""

    def _build(self, uxfrm, workers=1):
        super()._build()
        self.here, self.there = (Gateway(uxfrm, namespace, workers=workers) for namespace in (self.left, self.right))
        for gateway in (self.here, self.there):
            self.callback(gateway.close)
            self.gateways.append(gateway)

    def start(self, association=PROTECTED):
        self.here.start(association.lines(HERE, THERE), more=CONTROLLED)
        self.there.start(association.lines(THERE, HERE), more=CONTROLLED)


@pytest.fixture(params=[1, 2], ids=["worker", "workers"])
def both(uxfrm, request):
    with Both(uxfrm, request.param) as made:
        yield made


def test_a_full_disk_has_room_for_who_takes_over(uxfrm):
    """The journal has room to spare, which is the file's and not the process's: another one goes
    on in it."""
    with Both(uxfrm) as both, contextlib.ExitStack() as mounted:
        store = both.here.directory / "sequences"
        store.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", store], check=True)
        mounted.callback(subprocess.run, ["umount", "-l", store], check=True)
        both.start(STATIC)
        with Numbered(both.right, both.left, THERE.inner[4], HERE.inner[4]) as numbered:
            numbered.wait(200)
            with contextlib.suppress(OSError), open(store / "fill", "wb", buffering=0) as fill:
                while True:
                    fill.write(bytes(512))
            for number in range(2):
                inode = (store / "sequences").stat().st_ino
                assert "has taken over" in both.here.upgrade()
                # Each is one more that only a journal which is written lets in.
                key = f"aead rfc4106(gcm(aes)) 0x{number:040x} 128"
                both.here.ip(f"xfrm state add src 10.9.0.9 dst 10.9.0.1 proto esp spi {0x5000 + number} mode tunnel {key}")
                numbered.wait(200)
                assert (store / "sequences").stat().st_ino == inode
        assert numbered.lost() == []
        assert "sequence numbers can't be written down" not in both.here.log()
        both.here.stop()
        assert "sequence numbers can't be written down" not in both.here.log()


def test_no_packet_is_lost(both):
    both.start()
    numbered = Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4])
    back = Numbered(both.right, both.left, THERE.inner[4], HERE.inner[4])
    with numbered, back:
        for gateway in (both.here, both.there) * UPGRADES:
            numbered.wait(200)
            before = gateway.pid
            said = gateway.upgrade()
            assert "has taken over as process" in said
            assert gateway.pid != before
            assert str(gateway.pid) in said
    for direction in (numbered, back):
        assert direction.refused == 0
        assert direction.lost() == []
        assert len(direction.arrived) == len(set(direction.arrived)), "none twice"
    for gateway in (both.here, both.there):
        assert not {name for name in gateway.statistics() if name not in ("XfrmInNoPols",)}, gateway.statistics()
        gateway.stop()


def test_numbers_go_on_and_no_iv_is_used_twice(both):
    both.start()
    both.between.seen()
    with Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4]) as numbered:
        for _ in range(3):
            numbered.wait(100)
            both.here.upgrade()
        numbered.wait(100)
    esp = [frame for frame in frames_to(both.between.seen(), THERE.outer[4]) if wire.protocol(frame) == "esp"]
    assert len(esp) >= numbered.sent
    numbers = [struct.unpack("!I", frame[38:42])[0] for frame in esp]
    ivs = [frame[42:50] for frame in esp]
    assert sorted(numbers) == list(range(1, len(esp) + 1)), "none is missing and none is there twice"
    assert len(set(ivs)) == len(ivs)


def frames_to(seen, address):
    destination = socket.inet_aton(address)
    return [frame for _, frame in seen if frame[12:14] == b"\x08\x00" and frame[30:34] == destination]


def test_what_was_received_before_is_not_received_again(both):
    both.start(STATIC)
    both.between.seen()
    with Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4]) as numbered:
        numbered.wait(200)
        both.there.upgrade()
        numbered.wait(200)
    replayed = [frame for frame in frames_to(both.between.seen(), THERE.outer[4]) if wire.protocol(frame) == "esp"]
    delivered = both.there.ip("-s xfrm state")
    for frame in replayed:
        both.between.send(frame)
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while refused(both.there) < len(replayed):
        assert time.monotonic() < deadline, f"{refused(both.there)} of {len(replayed)}:\n{both.there.stat()}"
        time.sleep(0.05)
    assert bytes_of(both.there.ip("-s xfrm state")) == bytes_of(delivered), "nothing more was let through"


def refused(gateway):
    return gateway.statistics().get("XfrmInStateSeqError", 0)


def bytes_of(states):
    return re.findall(r"(\d+)\(bytes\), (\d+)\(packets\)", states)


def test_what_clients_see_is_the_same(both):
    """States, policies and counters; who listens hears on; an SPI that was asked for is still
    there."""
    lines = PROTECTED.lines(HERE, THERE)
    both.here.start([*lines, "xfrm policy add src 10.7.0.0/24 dst 10.8.0.0/24 dir in priority 7 action block"], more=CONTROLLED)
    both.there.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    gateway, exec_ip = both.here, f"{both.here._binary} exec -- ip xfrm"
    gateway.ip("xfrm policy add src 10.7.9.0/24 dst 10.8.0.0/24 dir fwd priority 3 action block")
    gateway.ip("xfrm policy setdefault in block")
    gateway.ip("xfrm state allocspi src 10.9.0.2 dst 10.9.0.1 proto esp mode tunnel reqid 9 min 0x777 max 0x777")
    both.left.ping(HERE.inner[4], THERE.inner[4])
    with (
        open(gateway.directory / "monitor", "w") as heard,
        listener.of_gateway(both.left, both.here._binary, *exec_ip.split(), "monitor", stdout=heard),
    ):
        before = listed(gateway)
        gateway.upgrade()
        assert list(difflib.unified_diff(before, listed(gateway), n=0)) == []
        gateway.ip("xfrm policy add src 10.7.8.0/24 dst 10.8.0.0/24 dir fwd action block")
        hears = lambda: "10.7.8.0/24" in (gateway.directory / "monitor").read_text()  # noqa: E731
        patience.wait_for(hears, "who listened before hears nothing")
    gateway.ip("xfrm policy delete src 10.7.8.0/24 dst 10.8.0.0/24 dir fwd")
    both.left.ping(HERE.inner[4], THERE.inner[4])
    gateway.write([*lines], more=CONTROLLED)
    said = gateway.namespace.run(str(gateway._binary), "reload")
    assert said.splitlines() == ["- policy src 10.7.0.0/24 dst 10.8.0.0/24 dir in action block priority 7"], "what files said is known"


def listed(gateway):
    """All that `ip` shows, but for what passes by itself."""
    shown = [gateway.ip(f"-s xfrm {what}") for what in ("state list", "policy list", "policy getdefault")]
    entries = sorted(re.split(r"^(?=\S)", "\n".join(shown), flags=re.M))
    return [line for line in "".join(entries).splitlines() if line]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_afterwards_it_ends_and_starts_as_ever(end, both):
    before = host_state(both.left)
    both.start()
    running = host_state(both.left)
    both.here.upgrade()
    assert host_state(both.left) == running, "routes, rules and the TUN are the same"
    again = both.left.run(str(both.here._binary), "run", str(both.here.directory / "config.toml"), check=False)
    assert "another uxfrm runs in this network namespace" in again
    getattr(both.here, end)()
    if end == "kill":
        with pytest.raises(RuntimeError):
            both.left.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=UNANSWERED_SECONDS)
        wire.assert_no_plaintext(both.between.seen())
        both.here.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
        both.left.ping(HERE.inner[4], THERE.inner[4])
        both.here.stop()
    assert host_state(both.left) == before


def others_program(gateway):
    program = gateway.directory / "others"
    shutil.copy(gateway._binary, program)
    program.chmod(0o777)
    return program, "may be written by others"


def written_by_the_gateway(gateway):
    """It may write where its store is, as somebody who has broken into it would."""
    program = gateway.directory / "sequences" / "own"
    shutil.copy(gateway._binary, program)
    program.chmod(0o755)
    return program, "the gateway itself may write to"


def pipe(gateway):
    program = gateway.directory / "pipe"
    os.mkfifo(program, 0o700)
    return program, "is no file"


def text(gateway):
    return "/etc/passwd", "can't be started"


def other_program(gateway):
    return "/bin/false", "the other process has ended"


def spoilt_configuration(gateway):
    gateway.write(["xfrm nonsense"], more="[nonsense]\n")
    return None, "config.toml:"


def other_table(gateway):
    gateway.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED, wire="table = 31000")
    return None, "has another TUN, table"


@pytest.mark.parametrize("fault", [others_program, written_by_the_gateway, pipe, text, other_program, spoilt_configuration, other_table])
def test_where_another_can_t_take_over_the_gateway_runs_on(fault, uxfrm):
    with Both(uxfrm) as both:
        both.start()
        running = host_state(both.left)
        with Numbered(both.left, both.right, HERE.inner[4], THERE.inner[4]) as numbered:
            numbered.wait(100)
            before = both.here.pid
            binary, why = fault(both.here)
            assert why in both.here.upgrade(binary, check=False)
            assert both.here.pid == before
            numbered.wait(100)
            both.here.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
            assert "has taken over" in both.here.upgrade()
            numbered.wait(100)
        assert numbered.lost() == [] and numbered.refused == 0
        assert host_state(both.left) == running
        both.here.stop()


def test_sighup_meanwhile_is_not_lost(uxfrm):
    with Both(uxfrm) as both:
        both.start()
        for number in range(12):
            block = f"xfrm policy add src 10.7.{number}.0/24 dst 10.8.0.0/24 dir out action block"
            both.here.write([*PROTECTED.lines(HERE, THERE), block], more=CONTROLLED)
            upgrading = threading.Thread(target=both.here.upgrade)
            upgrading.start()
            # An upgrade takes some 30 ms on an idle machine.
            time.sleep(number * 0.005)
            both.here.hang_up()
            upgrading.join()
            wait_until(lambda: f"10.7.{number}.0/24" in both.here.ip("xfrm policy"), f"the reload of round {number} is lost")


def test_no_interpreter_is_made_to_run_what_a_gateway_may_have_written(uxfrm, tmp_path, monkeypatch):
    """The supervisor has all privileges that the gateway gave up, and starts whatever is root's."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "--under-supervisor"):
        (tmp_path / name).write_text("open('ran', 'w')\n")
    with Both(uxfrm) as both:
        both.start()
        for interpreter in ("/usr/bin/python3", "/bin/sh", "/usr/bin/env", "/usr/bin/perl"):
            assert "the gateway runs on as it was" in both.here.upgrade(interpreter, check=False)
            assert not (tmp_path / "ran").exists(), interpreter
        both.left.ping(HERE.inner[4], THERE.inner[4])


def test_charon_and_its_peer_notice_nothing(uxfrm):
    prerequisite.strongswan()
    with topology.Sites() as sites, topology.Hosts() as running:
        left, right = End(sites.left, "10.9.0.1", "10.1.0.0/24"), End(sites.right, "10.9.0.2", "10.2.0.0/24")
        for end in (left, right):
            end.start(running, uxfrm)
        ike.connect(left, right)
        left.charon.initiate()
        with Numbered(sites.left_host, sites.right_host, "10.1.0.2", "10.2.0.2") as numbered:
            for _ in range(2):
                for end in (left, right):
                    numbered.wait(100)
                    sas = spis(end)
                    end.gateway.upgrade()
                    assert spis(end) == sas
                numbered.wait(100)
                before = spis(left)
                left.charon.swanctl("--rekey", "--child", "net")
                left.wait_for_states(lambda states: not set(re.findall(r"spi (0x[0-9a-f]+)", states)) & before)
                left.charon.swanctl("--rekey", "--ike", "to")
            numbered.wait(100)
        counted = [end.gateway.namespace.run(str(uxfrm), "stat", "--reasons") for end in (left, right)]
        assert numbered.lost() == [] and numbered.refused == 0, [re.findall(r"(\w+) +\t([1-9]\d*)", text) for text in counted]
        sites.right_host.ping("10.2.0.2", "10.1.0.2")
        wire.assert_no_plaintext(sites.between.seen())


def spis(end):
    return set(re.findall(r"spi (0x[0-9a-f]+)", end.states()))


def test_as_process_1_it_reaps_whom_others_leave(uxfrm):
    """As in a container: whoever loses its parent there is its child."""
    with Both(uxfrm) as both:
        gateway = both.here
        gateway.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
        alone = ["unshare", "--fork", "--pid", "--kill-child", "ip", "netns", "exec", both.left.name]
        with open(gateway.directory / "log", "w") as log:
            container = subprocess.Popen([*alone, uxfrm, "run", gateway.directory / "config.toml"], stdout=log, stderr=log)
        try:
            wait_until(lambda: "uxfrm: ready" in gateway.log(), gateway.log)
            first = children(container.pid)[0]
            subprocess.run(["nsenter", "--target", str(first), "--pid", "sh", "-c", "sleep 1 & sleep 1 & exit"], check=True)
            wait_until(lambda: len(children(first)) == 3, lambda: f"orphans: {children(first)}")
            wait_until(lambda: len(children(first)) == 1, lambda: f"left: {children(first)}")
            assert "has taken over" in gateway.upgrade()
            wait_until(lambda: len(children(first)) == 1, lambda: f"left: {children(first)}")
        finally:
            container.kill()
            container.wait()


def children(pid):
    """Zombies as well."""
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait_until(condition, why):
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def test_packets_that_wait_for_a_state_wait_on(uxfrm):
    """An acquire is under way: who answers it later than an upgrade finds the packets still
    there, each once."""
    with Trapped(uxfrm) as network:
        network.here.start(PROTECTED.policies(HERE, THERE), more=CONTROLLED)
        network.there.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
        with Monitor(network.here) as monitor:
            is_heard(network, monitor)
            with network.right.entered():
                far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            far.bind((THERE.inner[4], 7300))
            far.settimeout(ARRIVAL_SECONDS)
            with network.left.entered():
                near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with contextlib.closing(far), contextlib.closing(near):
                near.bind((HERE.inner[4], 0))
                sent = [struct.pack("!Q", number) + bytes(number * 50) for number in range(20)]
                for datagram in sent:
                    near.sendto(datagram, (THERE.inner[4], 7300))
                monitor.wait_for("acquire")
                for _ in range(2):
                    network.here.upgrade()
                assert monitor.text().count("acquire") == 1, "nobody is asked again"
                for line in reversed(PROTECTED.states(HERE, THERE)):
                    network.here.exec(f"ip {line}")
                assert [far.recv(2048) for _ in sent] == sent
        assert network.here.statistics() == {}
