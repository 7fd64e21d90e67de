"""`uxfrm xfrm save` and `uxfrm xfrm sync`: a running gateway's states and policies as lines, and
lines as a running gateway's states and policies, by the fewest changes and without a gap."""

import contextlib
import pathlib
import random
import re
import socket
import threading

import pytest

import listener
import patience
import topology
import wire
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_lifecycle import gateway, network  # noqa: F401: fixtures
from test_reload import last_sent, reload
from test_restart import IV_BYTES, parsed
from topology import HERE, THERE

SHARED = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 128")
BLOCK = "xfrm policy add src 10.7.0.0/24 dst 10.8.0.0/24 dir in action block priority 7"
OTHER_STATE = (
    "xfrm state add src 10.9.0.1 dst 10.9.0.77 proto esp spi 0x00007777 mode tunnel reqid 77"
    " aead rfc4106(gcm(aes)) 0x" + "77" * 20 + " 128"
)


def uxfrm_xfrm(gateway, words, check=True):
    """What `uxfrm xfrm WORDS` prints, errors too."""
    return gateway.namespace.run("sh", "-c", f"{gateway._binary} xfrm {words} 2>&1", check=check)


def save(gateway, words=""):
    return gateway.namespace.run("sh", "-c", f"umask 077; {gateway._binary} xfrm save {words}")


def sync(gateway, lines, *options, check=True):
    """What it tells, of a file with these lines."""
    path = gateway.directory / "wanted"
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return uxfrm_xfrm(gateway, " ".join(["sync", str(path), *options]), check=check)


def without_numbers(listing):
    """A listing without what passing time and packets change, and without policies' indexes."""
    varying = re.compile(r"\s*(lastused|add |anti-replay|seq-hi|\d+\(bytes\)|[0-9a-f]{8} )")
    lines = [re.sub(r" index \d+", "", line) for line in listing.splitlines() if not varying.match(line)]
    return "\n".join(lines)


def listed(gateway):
    return [without_numbers(gateway.ip(f"xfrm {kind}")) for kind in ("state", "policy")]


def test_what_was_saved_makes_the_same_again(gateway, network):
    lines = [
        *SHARED.lines(HERE, THERE),
        OTHER_STATE + " flag af-unspec limit byte-hard 123456789",
        "xfrm policy add src 10.7.0.0/24 dst 10.8.0.0/24 proto udp sport 1024/0xfc00 dir in action block",
        "xfrm policy add src fd07::/64 dst fd08::/64 dir fwd ptype sub tmpl proto esp mode transport reqid 5",
        "xfrm policy setdefault fwd block",
    ]
    gateway.start(lines, more=CONTROLLED)
    with pytest.raises(RuntimeError):
        network.left.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=2)
    text, before = save(gateway), listed(gateway)
    assert text.splitlines()[0] == "xfrm policy setdefault in accept fwd block out accept"
    assert sync(gateway, text.splitlines()) == "", "it is there already"
    # By `-batch`, on an empty gateway; and as the file of a configuration.
    uxfrm_xfrm(gateway, "state flush")
    uxfrm_xfrm(gateway, "policy flush")
    uxfrm_xfrm(gateway, "policy flush ptype sub")
    assert save(gateway).count("\n") == 1
    path = gateway.directory / "saved"
    path.write_text(text)
    assert uxfrm_xfrm(gateway, f"-batch {path}") == ""
    assert (save(gateway), listed(gateway)) == (text, before)
    gateway.stop()
    gateway.start(text.splitlines(), more=CONTROLLED)
    assert (save(gateway), listed(gateway)) == (text, before)
    assert reload(gateway) == "nothing is different\n"
    hidden = save(gateway, "nokeys")
    assert hidden.count("<<Keys hidden>>") == 3 and "0x7777" not in hidden.replace("spi 0x00007777", "")
    refused = sync(gateway, hidden.splitlines(), check=False)
    assert refused.count("hidden (nokeys)") == 3, refused
    assert (save(gateway), listed(gateway)) == (text, before)
    assert " index " in save(gateway, "index") and " index " not in text
    gateway.stop()


def test_debians_ip_takes_usual_lines_too(gateway, network):
    gateway.start([*SHARED.lines(HERE, THERE), OTHER_STATE, BLOCK], more=CONTROLLED)
    text = save(gateway)
    path = gateway.directory / "saved"
    path.write_text(text)
    uxfrm_xfrm(gateway, "state flush")
    uxfrm_xfrm(gateway, "policy flush")
    gateway.ip(f"-batch {path}")
    assert save(gateway) == text
    gateway.stop()


def test_what_is_on_a_device_is_saved_by_its_name(gateway, network):
    """Whether its line named the device, or a program its number."""
    device = '[[device]]\nname = "nic0"\nprofile = "unlimited"\n'
    words = f"{OTHER_STATE} offload packet dev nic0 dir out"
    gateway.start([words], more=CONTROLLED + device)
    uxfrm_xfrm(gateway, words.removeprefix("xfrm ").replace("00007777", "00007778").replace("rfc4106(gcm(aes))", "'rfc4106(gcm(aes))'"))
    uxfrm_xfrm(gateway, "policy add src 10.7.0.0/24 dst 10.9.0.77/32 dir out offload packet dev nic0")
    text = save(gateway)
    assert text.count("offload packet dev nic0 dir out") == 2, text
    assert text.count("offload packet dev nic0\n") == 1, text
    assert sync(gateway, text.splitlines()) == ""
    uxfrm_xfrm(gateway, "state flush")
    uxfrm_xfrm(gateway, "policy flush")
    assert len(sync(gateway, text.splitlines()).splitlines()) == 3
    assert save(gateway) == text
    gateway.stop()


def test_save_warns_where_others_can_read_the_keys(gateway, network):
    gateway.start([OTHER_STATE], more=CONTROLLED)
    path = gateway.directory / "saved"
    told = gateway.namespace.run("sh", "-c", f"umask 022; {gateway._binary} xfrm save 2>&1 >{path}")
    assert told.startswith("Warning: every user of this host may read the keys in this file"), told
    told = gateway.namespace.run("sh", "-c", f"umask 022; {gateway._binary} xfrm save nokeys 2>&1 >{path}")
    assert told == ""
    path.unlink()
    assert gateway.namespace.run("sh", "-c", f"umask 077; {gateway._binary} xfrm save 2>&1 >{path}") == ""
    gateway.stop()


def test_sync_changes_only_what_is_different(gateway, network):
    lines = SHARED.lines(HERE, THERE)
    gateway.start([*lines, BLOCK], more=CONTROLLED)
    gateway.ip("xfrm policy add src 10.7.9.0/24 dst 10.8.0.0/24 dir in action block")
    with pytest.raises(RuntimeError):
        network.left.ping(HERE.inner[4], THERE.inner[4], count=2, seconds=2)
    sent, before = last_sent(gateway), listed(gateway)
    assert sent > 0, "a state has numbers to keep"
    wanted = [*lines, OTHER_STATE]
    plan = [
        "+ state src 10.9.0.1 dst 10.9.0.77 proto esp spi 0x00007777",
        "- policy src 10.7.0.0/24 dst 10.8.0.0/24 dir in action block priority 7",
        "- policy src 10.7.9.0/24 dst 10.8.0.0/24 dir in action block priority 0",
    ]
    assert sorted(sync(gateway, wanted, "--dry-run").splitlines()) == sorted(plan)
    assert listed(gateway) == before
    assert sync(gateway, wanted, "--keep-others").splitlines() == plan[:1]
    heard = gateway.directory / "heard"
    monitor = [gateway._binary, "xfrm", "monitor", "policy"]
    with open(heard, "w") as out, listener.of_gateway(gateway.namespace, gateway._binary, *monitor, stdout=out):
        assert sorted(sync(gateway, wanted).splitlines()) == sorted(plan[1:])
        patience.wait_for(lambda: heard.read_text().count("Deleted src 10.7.") == 2, heard.read_text)
    assert last_sent(gateway) >= sent, "states whose lines are the same go on"
    assert sync(gateway, wanted) == ""
    # The files' word counts at a reload: what they say comes back, what they never said stays.
    assert reload(gateway).splitlines() == ["+ policy src 10.7.0.0/24 dst 10.8.0.0/24 dir in action block priority 7"]
    assert "0x00007777" in gateway.ip("xfrm state")
    gateway.write(lines[1:], more=CONTROLLED)
    assert f"- state dst {THERE.outer[4]} proto esp spi 0x00002000" in reload(gateway), "files own it still"
    gateway.stop()


def test_what_is_wrong_changes_nothing_and_shows_no_key(gateway, network):
    gateway.start(SHARED.lines(HERE, THERE), more=CONTROLLED)
    before = save(gateway)
    key = "77" * 20
    wrong = [OTHER_STATE.replace("mode", "mod"), "xfrm policy add src 10.7.0.0/33 dst 10.8.0.0/24 dir in", "xfrm state list"]
    said = sync(gateway, wrong, check=False)
    path = gateway.directory / "wanted"
    assert f"{path}:1:" in said and f"{path}:2:" in said and key not in said, said
    said = sync(gateway, [OTHER_STATE, OTHER_STATE], check=False)
    assert f"{path}:2: " in said and "exist" in said and key not in said, said
    said = sync(gateway, ["# nothing"], check=False)
    assert "says no state" in said, said
    said = uxfrm_xfrm(gateway, "sync /dev/null", check=False)
    assert "/dev/null: it says no state" in said, said
    said = uxfrm_xfrm(gateway, f"sync {path}.missing", check=False)
    assert f'Cannot read file "{path}.missing"' in said, said
    many = [f"xfrm policy add src 10.7.0.0/99 dst 10.8.{number}.0/24 dir in" for number in range(256)] * 80
    said = sync(gateway, many, check=False)
    assert f"and {1000 - 256} more; the rest was not read" in said
    assert save(gateway) == before
    gateway.stop()


def memory_has(pid, sought):
    """Whether the bytes stand anywhere in the memory of a process."""
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if " rw" in line:
                memory.seek(begin)
                if sought in memory.read(end - begin):
                    return True
    return False


def test_no_text_of_a_key_stays_in_the_gateways_memory(gateway, network):
    gateway.start([BLOCK], more=CONTROLLED)
    assert memory_has(gateway.pid, str(gateway.directory).encode()), "what is there is found"
    text = [OTHER_STATE, BLOCK, *(f"# {number:060}" for number in range(2000))]
    for options in (["--dry-run"], []):
        assert sync(gateway, text, *options).startswith("+ state ")
        assert not memory_has(gateway.pid, b"77" * 20)
        assert not memory_has(gateway.pid, text[-1].encode()), "nothing of the text stays"
    gateway.stop()


def test_a_text_of_many_pieces_from_standard_input(gateway, network):
    gateway.start([], more=CONTROLLED)
    lines = [f"xfrm policy add src 10.{number // 250}.{number % 250}.0/24 dst 10.200.0.0/16 dir in action block" for number in range(5000)]
    path = gateway.directory / "wanted"
    path.write_text("".join(f"{line}\n" for line in lines))
    assert path.stat().st_size > 4 * 64 * 1024
    told = gateway.namespace.run("sh", "-c", f"{gateway._binary} xfrm sync - <{path}")
    assert "and 904 more" in told
    assert save(gateway).splitlines()[1:] == [line.replace(" action", " action") for line in lines]
    assert gateway.namespace.run("sh", "-c", f"{gateway._binary} xfrm sync - <{path}") == ""
    gateway.stop()


class Numbered:
    """Datagrams with numbers, one after the other, from the left to the right."""

    def __init__(self, left, right):
        with right.entered():
            self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._far.bind((THERE.inner[4], 4242))
        self._far.settimeout(patience.SECONDS)
        with left.entered():
            self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._near.bind((HERE.inner[4], 0))
        self._ends = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self):
        while not self._ends.wait(0.001):
            self._near.sendto(b"%d" % self.sent, (THERE.inner[4], 4242))
            self.sent += 1

    @contextlib.contextmanager
    def flowing(self):
        self._thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._thread.join()

    def lost(self):
        """Numbers that have not come, once the last has."""
        come = set()
        while self.sent - 1 not in come:
            come.add(int(self._far.recv(64)))
        return sorted(set(range(self.sent)) - come)

    def close(self):
        self._near.close()
        self._far.close()


def test_a_tunnel_that_both_texts_have_loses_nothing_and_repeats_no_iv(uxfrm):
    """Random texts, one after the other, at both ends, while datagrams flow."""
    chance = random.Random(7)
    lines = SHARED.lines(HERE, THERE)
    with topology.PlacedGateways() as hosts:
        ends = [Gateway(uxfrm, hosts.left), Gateway(uxfrm, hosts.right)]
        try:
            ends[0].start(lines, more=CONTROLLED)
            ends[1].start(SHARED.lines(THERE, HERE), more=CONTROLLED)
            hosts.left.ping(HERE.inner[4], THERE.inner[4])
            hosts.between.seen()
            flow = Numbered(hosts.left, hosts.right)
            with flow.flowing():
                for _ in range(20):
                    for end, own in zip(ends, (lines, SHARED.lines(THERE, HERE))):
                        sync(end, chance.sample(others(chance), 6) + changed(chance, own))
                patience.wait_for(lambda: flow.sent > 1000, lambda: f"{flow.sent} sent")
            assert flow.lost() == []
            flow.close()
            frames = [frame for outgoing, frame in hosts.between.seen() if outgoing]
            wire.assert_no_plaintext([(True, frame) for frame in frames])
            packets = [parsed(frame, IV_BYTES[GCM_128.name]) for frame in frames if wire.protocol(frame) == "esp"]
            assert len(packets) >= flow.sent
            assert len({packet.iv for packet in packets}) == len(packets), "an IV was used twice"
            for end in ends:
                end.stop()
        finally:
            for end in ends:
                end.close()


def others(chance):
    """States and policies that have nothing to do with the tunnel."""
    states = [OTHER_STATE.replace("7777", f"77{number:02}") + f" limit packet-soft {chance.randrange(1, 3)}" for number in range(10, 20)]
    policies = [
        f"xfrm policy add src 10.7.{number}.0/24 dst 10.8.0.0/16 dir {way} action block priority {chance.randrange(3)}"
        for number in range(10)
        for way in ("in", "out", "fwd")
    ]
    return states + policies


def changed(chance, lines):
    """The tunnel's own lines, in which only what does no harm is different."""
    limit = chance.choice(["", " limit byte-soft 999999999", " limit packet-soft 999999999"])
    return [f"{line}{limit}" if " state " in line else line for line in lines]
