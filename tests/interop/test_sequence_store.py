"""The store of sequence numbers: what is lost, old, foreign, full or removed while in use repeats
no IV, replays nothing, and is told of.

The far end of the wire is the test itself (topology.UxfrmAndWire): scapy seals what comes in,
and every frame that goes out is looked at.
"""

import shutil
import socket
import subprocess
import time

import pytest

import patience
import prerequisite
import topology
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_offload import CRYPTO, PACKET, offloaded
from test_offload_contract import SOFTWARE
from test_restart import IV_BYTES, Traffic, next_esp, parsed
from test_scapy import ANSWER_SECONDS, next_esp as next_answer, packet, sealed_request, security_association
from topology import HERE, THERE

STATIC = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 128")
LINES = STATIC.lines(HERE, THERE)
REPLAYED = 50
# `FIRST_RESERVED` of crates/engine.
RESERVED = 16384
# `AHEAD` of crates/daemon/src/reconcile/sequences/reservation.rs.
AHEAD = 4_194_304
# linux/netlink.h, and the kernel's own group
NETLINK_KOBJECT_UEVENT, KERNEL_GROUP = 15, 1
DEVICE = '[[device]]\nname = "nic0"\nprofile = "unlimited"\n'


class End:
    """The gateway, its wire, and all IVs that it was seen to send."""

    def __init__(self, binary):
        self.network = topology.UxfrmAndWire()
        self.gateway = Gateway(binary, self.network.here)
        self.sent = []

    def close(self):
        self.gateway.close()
        self.network.close()

    def log(self):
        return self.gateway.log()

    @property
    def store(self):
        return self.gateway.directory / "sequences"

    def start(self, more="", lines=LINES):
        self.gateway.start(lines, more=more)

    def send(self):
        """Some packets, in each of which an IV is seen that was never seen before."""
        with Traffic(self.network.here):
            frames = [next_esp(self.network.far) for _ in range(20)]
        self.sent += [parsed(frame, IV_BYTES["gcm128"]) for frame in frames]
        assert len({packet.iv for packet in self.sent}) == len(self.sent), "an IV was used twice"

    def answered(self, frames, seconds=ANSWER_SECONDS):
        """How many of these requests were answered within so long; the last one is known to be
        if any is."""
        self.network.far.seen()
        for frame in frames:
            self.network.far.send(frame)
        answers, deadline = 0, time.monotonic() + seconds
        while answers < len(frames) and next_answer(self, deadline) is not None:
            answers += 1
        return answers

    def warnings(self):
        command = ["ip", "netns", "exec", self.network.here.name, self.gateway._binary, "stat"]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True).stderr

    def reasons(self):
        text = self.network.here.run(str(self.gateway._binary), "stat", "--reasons")
        counts = (line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2)
        return {name: int(count) for name, count in counts if count.isdigit()}


@pytest.fixture
def end(uxfrm):
    made = End(uxfrm)
    yield made
    made.close()


def requests(end, first, count):
    sa = security_association(STATIC, THERE, HERE)
    sa.seq_num = first
    frames = []
    for number in range(first, first + count):
        sa.seq_num = number
        frames.append(sealed_request(STATIC, end, sa, f"number {number}".encode()))
    return frames


def received(end):
    """From where and up to where the store lets the peer's state receive."""
    lines = (end.store / "sequences").read_text().strip("\0").splitlines()
    found = [tuple(map(int, line.split()[-2:])) for line in lines if line.startswith("received ")]
    return found[-1]


def lost(end):
    shutil.rmtree(end.store)


def emptied(end):
    (end.store / "sequences").write_bytes(b"")


def old(end):
    shutil.copy(end.gateway.directory / "old", end.store / "sequences")


def damaged(end):
    journal = end.store / "sequences"
    content = bytearray(journal.read_bytes())
    content[10] ^= 0xFF
    journal.write_bytes(content)


@pytest.mark.parametrize(
    "fault, said",
    [(lost, "lost: "), (emptied, "lost: "), (old, "rolled back: "), (damaged, "damaged: ")],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_store_that_is_not_what_was_written_repeats_no_iv_and_is_told_of(end, fault, said):
    end.start()
    end.send()
    shutil.copy(end.store / "sequences", end.gateway.directory / "old")
    for finish in (end.gateway.stop, end.gateway.kill):
        end.gateway.running() or end.start()
        end.send()
        finish()
        fault(end)
        checked = end.network.here.run(
            "sh", "-c", f"{end.gateway._binary} check {end.gateway.directory / 'config.toml'} 2>&1", check=False
        )
        assert said in checked, checked
        end.start()
        for told in (end.log(), end.warnings()):
            assert said in told and "IV repeats with a chance" in told, told
        end.send()
    end.gateway.stop()
    end.start()
    assert "store of sequence numbers" not in end.log() + end.warnings(), "it is whole again"


def test_configuration_of_another_name_has_the_same_store(uxfrm, end):
    """As is the default: by the TUN and the network namespace, not by the configuration's name."""
    name = f"uxfrm0@{end.network.here.name}"
    shutil.rmtree(f"/var/lib/uxfrm/{name}", ignore_errors=True)
    for config in ("gw.toml", "renamed.toml"):
        end.gateway.write(LINES)
        text = (end.gateway.directory / "config.toml").read_text().replace('sequences = "sequences"\n', "")
        (end.gateway.directory / config).write_text(text)
        command = ["ip", "netns", "exec", end.network.here.name, uxfrm, "run", end.gateway.directory / config]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            while "ready" not in process.stderr.readline():
                assert process.poll() is None
            end.send()
            process.terminate()
            process.communicate()
    numbers = [packet.number for packet in end.sent]
    assert sorted(set(numbers)) == sorted(numbers), "numbers went back"
    shutil.rmtree(f"/var/lib/uxfrm/{name}")


@pytest.mark.parametrize("finish", ["stop", "kill"])
def test_store_removed_while_in_use_is_written_anew(end, finish):
    """Where it has a directory around it, and the configuration lies elsewhere."""
    config, store = end.gateway.directory / "config.toml", end.gateway.directory / "own" / "sequences"

    def start():
        end.gateway.write(LINES)
        config.write_text(config.read_text().replace('"sequences"', '"own/sequences"'))
        end.gateway.launch()

    start()
    end.send()
    shutil.rmtree(store)
    journal = store / "sequences"
    deadline = time.monotonic() + ANSWER_SECONDS
    while not journal.exists():
        assert time.monotonic() < deadline, end.log()
        time.sleep(0.05)
    assert "removed or replaced while in use" in end.log()
    assert "removed or replaced while in use" in end.warnings()
    getattr(end.gateway, finish)()
    before = max(packet.number for packet in end.sent)
    start()
    end.send()
    assert min(packet.number for packet in end.sent[-20:]) > before, "numbers go on"


@pytest.mark.parametrize("kind", [SOFTWARE, CRYPTO, PACKET], ids=["software", "crypto", "packet"])
@pytest.mark.parametrize("finish", ["stop", "kill"])
def test_what_was_received_before_a_restart_is_not_received_again(end, finish, kind):
    lines = LINES if kind == SOFTWARE else offloaded(kind, STATIC, HERE, THERE)
    more = "" if kind == SOFTWARE else DEVICE
    end.start(more, lines)
    frames = requests(end, 1, REPLAYED)
    assert end.answered(frames) == REPLAYED
    getattr(end.gateway, finish)()
    end.start(more, lines)
    for frame in frames:
        end.network.far.send(frame)
    # What a device had received nobody knows when the process is killed.
    first = RESERVED if (finish, kind) == ("kill", PACKET) else REPLAYED
    # All of them are behind it when this one is answered.
    assert end.answered(requests(end, first + 1, 1)) == 1
    assert next_answer(end, time.monotonic() + 0.2) is None, "a replayed packet was answered"
    assert end.reasons()["in_before_restart"] == REPLAYED


@pytest.mark.parametrize("kind", [SOFTWARE, CRYPTO, PACKET], ids=["software", "crypto", "packet"])
@pytest.mark.parametrize("finish", ["stop", "kill"])
def test_starts_that_fail_leave_windows_where_they_were(end, finish, kind):
    lines = LINES if kind == SOFTWARE else offloaded(kind, STATIC, HERE, THERE)
    more = "" if kind == SOFTWARE else DEVICE
    end.start(more, lines)
    frames = requests(end, 1, REPLAYED)
    assert end.answered(frames) == REPLAYED
    end.send()
    getattr(end.gateway, finish)()
    end.network.here.ip("link add uxfrm0 type veth peer name taken0")
    edges = [received(end)]
    for _ in range(2):
        with pytest.raises(AssertionError, match="ended at start"):
            end.start(more, lines)
        edges.append(received(end))
    end.network.here.ip("link del uxfrm0")
    end.start(more, lines)
    for frame in frames:
        end.network.far.send(frame)
    # What a device receives nobody sees; it might have received all of it each time.
    first = edges[-1][1] if kind == PACKET else REPLAYED
    moved = [edges[0][1] + at * RESERVED for at in range(3)] if kind == PACKET else []
    assert moved in ([], [edge for _, edge in edges]), edges
    assert end.answered(requests(end, first + 1, 1)) == 1
    assert next_answer(end, time.monotonic() + 0.2) is None, "a replayed packet was answered"
    assert end.reasons()["in_before_restart"] == REPLAYED
    end.send()
    last, next_one = (packet.number for packet in end.sent[19:21])
    assert next_one > last + 2 * AHEAD - 100, "each start left out what it had reserved"


@pytest.mark.parametrize("kind", [SOFTWARE, CRYPTO, PACKET], ids=["software", "crypto", "packet"])
def test_what_was_received_before_a_reload_is_not_received_again(end, kind):
    """The key stays the same; what the state says of itself otherwise no update changes."""
    lines = LINES if kind == SOFTWARE else offloaded(kind, STATIC, HERE, THERE)
    more = CONTROLLED + ("" if kind == SOFTWARE else DEVICE)
    end.start(more, lines)
    frames = requests(end, 1, REPLAYED)
    end.send()
    assert end.answered(frames) == REPLAYED
    end.gateway.write([f"{line} flag af-unspec" if line.startswith("xfrm state") else line for line in lines], more=more)
    told = end.network.here.run(str(end.gateway._binary), "reload")
    assert told.count("(goes on)") == 2, told
    for frame in frames:
        end.network.far.send(frame)
    # All of them are behind it when this one is answered.
    assert end.answered(requests(end, REPLAYED + 1, 1)) == 1
    assert next_answer(end, time.monotonic() + 0.2) is None, "a replayed packet was answered"
    assert end.reasons()["in_replay"] == REPLAYED
    end.send()
    before, after = ([packet.number for packet in part] for part in (end.sent[:20], end.sent[20:]))
    assert min(after) > max(before), "numbers go on"


def test_device_may_receive_more_as_its_window_moves_on(end):
    end.start(DEVICE, offloaded(PACKET, STATIC, HERE, THERE))
    number, deadline = 1, time.monotonic() + ANSWER_SECONDS
    while number < 10 * RESERVED:
        number += RESERVED // 4
        # The next one may come before more is reserved.
        while end.answered(requests(end, number, 1), seconds=1) == 0:
            assert time.monotonic() < deadline, end.reasons()
            number += 1


def test_window_begins_at_the_reserved_edge_when_nothing_tells_more(end):
    """As after the machine's crash, which takes `/run` with it."""
    end.start()
    assert end.answered(requests(end, 1, REPLAYED)) == REPLAYED
    end.gateway.kill()
    name = str(end.store).strip("/").replace("/", "-")
    subprocess.run(["rm", f"/run/uxfrm/{name}/received.windows"], check=True)
    end.start()
    for frame in requests(end, 1, REPLAYED):
        end.network.far.send(frame)
    assert end.answered(requests(end, RESERVED + 1, 10)) == 10
    assert end.reasons()["in_before_restart"] == REPLAYED


def test_full_disk_refuses_new_states_and_the_old_ones_go_on(end):
    """And nothing of the refused ones is left: the client hears of it, and may try again."""
    end.gateway.write([])
    end.store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", end.store], check=True)
    try:
        end.start(more=CONTROLLED)
        filler = end.store / "filler"
        with open(filler, "wb", buffering=0) as file:
            with pytest.raises(OSError):
                while True:
                    file.write(bytes(1 << 16))
        # Room was kept for some lines; as soon as that is used up the disk is full indeed.
        refused = None
        for spi in range(0x5000, 0x9000, 0x100):
            script = f"for spi in $(seq {spi} {spi + 0xFF}); do {add('$spi')} || exit 1; done"
            told = end.network.here.run(
                str(end.gateway._binary), "exec", "--", "sh", "-c", f"({script}) 2>&1 && echo added", check=False
            )
            if "added" not in told:
                refused = told
                break
        assert refused and "can't be written down" in refused and "No space left" in refused, refused
        listed = end.gateway.ip("xfrm state list nokeys").count("\nsrc ") + 1
        end.send()
        assert "out_sequence_reserve" not in {name for name, count in end.reasons().items() if count}
        filler.unlink()
        deadline = time.monotonic() + ANSWER_SECONDS
        while "written down again" not in end.log():
            assert time.monotonic() < deadline, end.log()
            time.sleep(0.05)
        end.gateway.ip(add("0x9999").removeprefix("ip "))
        assert end.gateway.ip("xfrm state list nokeys").count("\nsrc ") + 1 == listed + 1
        end.gateway.stop()
    finally:
        end.gateway.kill()
        subprocess.run(["umount", end.store], check=True)


def test_disk_that_becomes_read_only_refuses_new_states_and_the_old_ones_go_on(end):
    """As ext4 does by itself when it finds an error; `remount,abort` is how it is tested. A
    plain remount is refused while files are open."""
    end.gateway.write([])
    end.store.mkdir()
    image = end.gateway.directory / "image"
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    if not shutil.which("mkfs.ext4"):
        prerequisite.not_run("needs mkfs.ext4: apt-get install e2fsprogs")
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, end.store], check=False).returncode != 0:
        pytest.skip("not run: needs a loop device")
    try:
        end.start(more=CONTROLLED)
        end.send()
        assert end.warnings() == ""
        listed = end.gateway.ip("xfrm state list nokeys")
        subprocess.run(["mount", "-o", "remount,abort", end.store], check=True)
        script = f"{add(0x5000)} 2>&1 && echo added".replace("(", "\\(").replace(")", "\\)")
        told = end.network.here.run(str(end.gateway._binary), "exec", "--", "sh", "-c", script, check=False)
        assert "added" not in told and "can't be written down" in told and "Read-only file system" in told, told
        assert end.gateway.ip("xfrm state list nokeys") == listed, "nothing of it is left"
        end.send()
        warned = end.warnings()
        assert "warning: sequence numbers can't be written down" in warned and "Read-only file system" in warned, warned
        assert "states that come are refused" in end.log(), end.log()
    finally:
        end.gateway.kill()
        subprocess.run(["umount", end.store], check=True)


def test_check_tells_of_a_read_only_file_system(end):
    end.gateway.write(LINES)
    end.store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", end.store], check=True)
    try:
        for what in ("check", "run"):
            command = f"{end.gateway._binary} {what} {end.gateway.directory / 'config.toml'} 2>&1 || echo refused"
            said = end.network.here.run("sh", "-c", command, check=False)
            assert "can't be written down in" in said and "Read-only file system" in said and "refused" in said.split("\n")[-2], said
    finally:
        subprocess.run(["umount", end.store], check=True)


def uevent(end, variable):
    """What the kernel sends when a hypervisor has restored the machine."""
    words = ["change@/devices/LNXSYSTM:00/VMGENCTR:00", "ACTION=change", "SUBSYSTEM=platform", variable, "SEQNUM=1", ""]
    with end.network.here.entered():
        sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT)
    with sender:
        sender.sendto("\0".join(words).encode(), (0, KERNEL_GROUP))


def test_machine_that_goes_on_from_a_snapshot_sends_with_other_prefixes(end):
    end.start()
    end.send()
    frames = requests(end, 1, REPLAYED)
    assert end.answered(frames) == REPLAYED
    [before] = {packet.iv[:4] for packet in end.sent}
    uevent(end, "NEW_VMGENID=0")
    end.send()
    assert {packet.iv[:4] for packet in end.sent} == {before}, "that was another event"
    uevent(end, "NEW_VMGENID=1")
    deadline = time.monotonic() + ANSWER_SECONDS
    while "goes on from a snapshot" not in end.log():
        assert time.monotonic() < deadline, end.log()
        time.sleep(0.05)
    # All that was sent before it has come.
    end.network.far.seen()
    end.send()
    assert before not in {packet.iv[:4] for packet in end.sent[-20:]}
    for frame in frames:
        end.network.far.send(frame)
    assert end.answered(requests(end, REPLAYED + 1, 1)) == 1
    assert next_answer(end, time.monotonic() + 0.2) is None, "a replayed packet was answered"


def add(spi):
    key = "0x" + "27" * 20
    cipher = "rfc4106\\(gcm\\(aes\\)\\)" if spi == "$spi" else "rfc4106(gcm(aes))"
    return f"ip xfrm state add src 10.9.0.1 dst 10.9.0.2 proto esp spi {spi} reqid 9 mode tunnel aead {cipher} {key} 128"


def test_second_gateway_gets_no_key_by_another_path(uxfrm, end):
    end.start()
    link = end.gateway.directory / "link"
    link.symlink_to(end.store)
    subprocess.run(["find", end.store, "-name", "*lock*", "-delete"], check=True)
    apart = end.network.namespace("apart")
    for path, said in [("sequences", "another uxfrm that runs has it"), ("link", "no symbolic link")]:
        config = end.gateway.directory / "second.toml"
        text = (end.gateway.directory / "config.toml").read_text()
        config.write_text(text.replace('sequences = "sequences"', f'sequences = "{path}"'))
        told = apart.run("sh", "-c", f"timeout {patience.SECONDS} {uxfrm} run {config} 2>&1", check=False)
        assert said in told, told
