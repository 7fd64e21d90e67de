"""What the last run protected stays refused: after a boot by `uxfrm guard`, after a restart
until somebody decides anew."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile

import pytest

import echo
import patience
import prerequisite
import wire
from association import GCM_128, Association
from gateway import CONTROLLED
from namespace import veth
from routing import NEIGHBOUR, SOCKETS, Pair, datagrams, unbound
from topology import HERE, THERE

MARK = 0x75780001
# Of programs, by the words behind `ip xfrm policy add`: what is protected, and what a better one
# lets pass.
PROTECTED = {4: "src 10.0.0.0/8 dst 10.2.0.0/16", 6: "src fd00::/8 dst fd02::/16"}
PASSING = {4: "10.2.9.0/24", 6: "fd02:9::/32"}
PASSED = {4: "10.2.9.1", 6: "fd02:9::1"}
HOST = {4: "10.1.7.2", 6: "fd01:7::2"}


class Machine(Pair):
    """A machine with a host behind it, which it forwards for."""

    def _build(self, uxfrm):
        super()._build(uxfrm)
        self.host = self.namespace("host")
        veth(self.host, "eth0", self.left, "eth1")
        self.host.address("eth0", f"{HOST[4]}/24", f"{HOST[6]}/64")
        self.left.address("eth1", "10.1.7.1/24", "fd01:7::1/64")
        for version, gateway in (("", "10.1.7.1"), ("-6 ", "fd01:7::1")):
            self.host.ip(f"{version}route add default via {gateway}")
        for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            self.left.run("sh", "-c", f"echo 1 > /proc/sys/net/{setting}")

    def uxfrm_says(self, *words, check=True):
        return self.left.run(self.uxfrm, *words, check=check)

    @property
    def config(self):
        return str(self.here.directory / "config.toml")

    @property
    def portrait(self):
        return self.here.directory / "sequences" / "policies"

    def protect(self, families=(4, 6)):
        """As an IKE daemon does."""
        template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 1 mode tunnel"
        for family in families:
            reversed_words = " ".join(reversed_ends(PROTECTED[family]))
            self.here.ip(f"xfrm policy add {PROTECTED[family]} dir out priority 100 {template}")
            for way in ("in", "fwd"):
                self.here.ip(f"xfrm policy add {reversed_words} dir {way} priority 100 {swapped(template)}")
            self.here.ip(f"xfrm policy add dst {PASSING[family]} dir out priority 50")

    def run_and_end(self, end, **options):
        self.here.start(states(), more=CONTROLLED, at_exit="block", **options)
        self.protect()
        patience.wait_for(lambda: all(passing in self.written() for passing in PASSING.values()), "policies written down", 30)
        getattr(self.here, end)()

    def written(self):
        is_there = self.portrait.is_file() and not self.portrait.is_symlink()
        return self.portrait.read_text(errors="replace") if is_there else ""

    def try_everything(self, families=(4, 6)):
        """Each kind of socket, and what is forwarded; whether they may is not asked."""
        for family in families:
            for kind in SOCKETS:
                with self.left.entered(), contextlib.suppress(OSError):
                    kind(family, THERE.inner[family], HERE.inner[family])
            with self.left.entered(), contextlib.suppress(OSError), datagrams(family) as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"wire0")
                made.bind((HERE.inner[family], 0))
                made.sendto(echo.MARKER, (THERE.inner[family], 9))
            with self.host.entered():
                for _ in range(3):
                    unbound(family, THERE.inner[family], None)

    def assert_closed(self):
        self.between.seen()
        self.try_everything()
        with self.left.entered():
            unbound(4, NEIGHBOUR[4], None)
        frames = self.sent(1)
        plain = [frame for frame in frames if echo.MARKER in frame]
        assert len(plain) == 1, f"only what nothing protects leaves: {[frame.hex() for frame in plain]}"

    def assert_protected(self):
        self.between.seen()
        self.try_everything()
        frames = [frame for outgoing, frame in self.between.seen() if outgoing]
        assert not any(echo.MARKER in frame for frame in frames)
        assert any(wire.protocol(frame) == "esp" for frame in frames)


def states():
    return Association(GCM_128, "tunnel", 4, 4).states(HERE, THERE)


def reversed_ends(words):
    source, destination = words.split()[1::2]
    return "src", destination, "dst", source


def swapped(template):
    return template.replace(f"src {HERE.outer[4]} dst {THERE.outer[4]}", f"src {THERE.outer[4]} dst {HERE.outer[4]}")


@pytest.fixture
def machine(uxfrm):
    prerequisite.packet_filter()
    with Machine(uxfrm) as made:
        yield made


@contextlib.contextmanager
def rebooted(machine, uxfrm):
    """The same machine with nothing but what was on its disk."""
    directory = machine.here.directory
    with tempfile.TemporaryDirectory(prefix="uxfrm-test-") as disk:
        shutil.copytree(directory, disk, dirs_exist_ok=True)
        machine.close()
        with Machine(uxfrm) as anew:
            shutil.copytree(disk, anew.here.directory, dirs_exist_ok=True)
            config = (anew.here.directory / "config.toml").read_text()
            (anew.here.directory / "config.toml").write_text(config.replace(str(directory), str(anew.here.directory)))
            yield anew


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_after_a_boot_nothing_of_the_last_run_leaves_plain(machine, uxfrm, end):
    machine.run_and_end(end)
    with rebooted(machine, uxfrm) as anew:
        anew.between.seen()
        anew.try_everything()
        assert any(echo.MARKER in frame for frame in anew.sent(1)), "the counter-test: so it leaves"
        for _ in range(2):
            assert "refused until uxfrm runs" in anew.uxfrm_says("guard", anew.config)
        anew.assert_closed()
        for family in (4, 6):
            with anew.left.entered():
                unbound(family, PASSED[family], None)
            assert echo.MARKER in anew.sent(1)[0], "what a better policy lets pass"
        anew.here.start(states(), more=CONTROLLED, at_exit="block")
        anew.assert_closed()
        anew.protect()
        anew.assert_protected()
        anew.here.stop()
        anew.uxfrm_says("clean", anew.config)
        assert not anew.portrait.exists()
        assert "30000" not in anew.left.ip("rule") and "uxfrm" not in anew.left.run("nft", "list", "ruleset")


def test_after_a_boot_ike_and_esp_pass(machine, uxfrm):
    """A policy from host to host would have them refused as well."""
    machine.here.start(states(), more=CONTROLLED)
    ends = f"src {HERE.outer[4]} dst {THERE.outer[4]}"
    machine.here.ip(f"xfrm policy add {ends} dir out tmpl {ends} proto esp reqid 1 mode transport")
    machine.here.ip(f"xfrm policy add src {THERE.outer[4]} dst {HERE.outer[4]} dir in tmpl proto esp reqid 1 mode transport")
    patience.wait_for(lambda: "\nin " in machine.written(), "policies written down", 30)
    machine.here.kill()
    with rebooted(machine, uxfrm) as anew:
        anew.uxfrm_says("guard", anew.config)
        anew.between.seen()
        with anew.left.entered(), datagrams(4) as heard, datagrams(4) as deaf, datagrams(4) as ike:
            heard.bind((HERE.outer[4], 500))
            deaf.bind((HERE.outer[4], 7777))
            ike.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
            ike.sendto(echo.MARKER, (THERE.outer[4], 500))
            with pytest.raises(OSError):
                unbound(4, THERE.outer[4], None)
            assert len([frame for frame in anew.sent(1) if echo.MARKER in frame]) == 1
            with anew.right.entered(), datagrams(4) as sender:
                sender.sendto(b"no", (HERE.outer[4], 7777))
                sender.sendto(b"yes", (HERE.outer[4], 500))
            heard.settimeout(patience.SECONDS)
            assert heard.recv(16) == b"yes"
            deaf.setblocking(False)
            with pytest.raises(BlockingIOError):
                deaf.recv(16)


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign"])
def test_without_a_good_portrait_files_or_all_are_guarded_and_it_is_said(machine, damage):
    out = f"xfrm policy add {PROTECTED[4]} dir out action block"
    machine.here.start([*states(), out], more=CONTROLLED, at_exit="block")
    machine.protect([6])
    patience.wait_for(lambda: "fd02::" in machine.written(), "policies written down", 30)
    machine.here.stop()
    machine.uxfrm_says("clean")
    if damage == "missing":
        machine.portrait.unlink()
    elif damage == "torn":
        machine.portrait.write_text(machine.written()[:-20])
    else:
        os.chown(machine.portrait, 65534, 65534)
        machine.portrait.chmod(0o666)
    said = machine.uxfrm_says("guard", machine.config)
    assert {"missing": "nothing is known", "torn": "damaged", "foreign": "somebody else's"}[damage] in said
    machine.between.seen()
    machine.try_everything([4])
    for family, destination in ((6, THERE.inner[6]), (4, NEIGHBOUR[4])):
        with machine.left.entered(), contextlib.suppress(OSError):
            unbound(family, destination, None)
    left = sorted(frame[12:14] for frame in machine.sent(2) if echo.MARKER in frame)
    # Where something is known to have been protected, and not what, nothing leaves.
    assert left == ([b"\x08\0", b"\x86\xdd"] if damage == "missing" else [])


DAMAGES = {
    "empty": lambda place: place.touch(),
    "torn": lambda place: place.write_text("uxfrm policies 1\nout main refuse programs live 100 10.0.0.0/8 10.2"),
    "random": lambda place: place.write_bytes(os.urandom(4096)),
    "directory": lambda place: place.mkdir(),
    "link": lambda place: place.symlink_to("/dev/zero"),
    "fifo": os.mkfifo,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_portrait_that_can_not_be_read_opens_nothing(machine, damage):
    """What a crash left refused stays refused until somebody lets go of it, and it is said how."""
    machine.run_and_end("kill")
    machine.portrait.unlink()
    DAMAGES[damage](machine.portrait)
    foretold = machine.uxfrm_says("check", machine.config)
    assert "uxfrm release" in foretold and "refuses all" in foretold, foretold
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    assert "is not known" in machine.here.log() and "uxfrm release" in machine.here.log()
    machine.between.seen()
    machine.try_everything()
    with machine.left.entered(), contextlib.suppress(OSError):
        unbound(4, NEIGHBOUR[4], None)
    frames = [frame for outgoing, frame in machine.between.seen() if outgoing]
    assert not any(echo.MARKER in frame for frame in frames), "nothing leaves"
    said = machine.uxfrm_says("stat", "--reasons")
    assert "held: 6 policies" in said and "uxfrm release" in said, said
    machine.protect()
    machine.assert_protected()
    if damage != "directory":  # which no file takes the place of
        patience.wait_for(lambda: "0.0.0.0/0" in machine.written(), "policies written down", 30)
    machine.uxfrm_says("release")
    with machine.left.entered():
        unbound(4, NEIGHBOUR[4], None)
    assert any(echo.MARKER in frame for frame in machine.sent(1))
    machine.here.stop()


@pytest.mark.parametrize("name", ["policies.new", "sequences.new"])
def test_what_lies_in_the_place_of_a_draft_is_not_waited_for(machine, name):
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    machine.here.kill()
    os.mkfifo(machine.portrait.with_name(name))
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    machine.protect()
    patience.wait_for(lambda: PASSING[4] in machine.written(), "policies written down", 30)
    machine.here.stop()


def test_a_fifo_as_journal_is_refused_at_once(machine):
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    machine.here.kill()
    journal = machine.portrait.with_name("sequences")
    journal.unlink()
    os.mkfifo(journal)
    assert "regular file" in machine.uxfrm_says("check", machine.config, check=False)
    with pytest.raises(AssertionError, match="has to be a regular file"):
        machine.here.start(states(), more=CONTROLLED, at_exit="block")


def test_files_that_can_not_be_read_are_refused_as_they_were(machine):
    machine.here.start([*states(), f"xfrm policy add {PROTECTED[4]} dir out action block"], more=CONTROLLED, at_exit="block")
    patience.wait_for(lambda: "files" in machine.written(), "policies written down", 30)
    machine.here.stop()
    machine.uxfrm_says("clean")
    machine.here.batch.write_text("xfrm policy add nonsense\n")
    assert "files are left out" in machine.uxfrm_says("guard", machine.config)
    machine.between.seen()
    machine.try_everything([4])
    with machine.left.entered():
        unbound(4, NEIGHBOUR[4], None)
    assert len([frame for frame in machine.sent(1) if echo.MARKER in frame]) == 1


def test_guard_leaves_a_gateway_that_runs_alone(machine):
    machine.here.start(states(), more=CONTROLLED)
    before = machine.left.run("nft", "list", "ruleset")
    assert "uxfrm runs" in machine.uxfrm_says("guard", machine.config)
    assert machine.left.run("nft", "list", "ruleset") == before


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_after_a_restart_it_is_refused_until_somebody_decides(machine, end):
    machine.run_and_end(end)
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    machine.assert_closed()
    said = machine.uxfrm_says("stat", "--reasons")
    assert "held: 6 policies of the last run" in said
    assert re.search(r"^out_held\s+[1-9]", said, re.M), said
    patience.wait_for(lambda: " held " in machine.written(), "what is held written down", 30)
    assert "src 10.0.0.0/8 dst 10.2.0.0/16 dir out" in machine.uxfrm_says("check", machine.config)
    assert "uxfrm release" in machine.here.log()
    machine.protect()
    machine.assert_protected()
    patience.wait_for(lambda: " held " not in machine.written(), "nothing is held", 30)


def test_deleting_or_releasing_lets_go(machine):
    machine.run_and_end("kill")
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    machine.here.ip(f"xfrm policy delete {PROTECTED[4]} dir out")
    with machine.left.entered():
        unbound(4, THERE.inner[4], None)
    machine.between.seen()
    with machine.left.entered():
        unbound(4, THERE.inner[4], None)
    assert echo.MARKER in machine.sent(1)[0]
    said = machine.uxfrm_says("release")
    assert "dst fd02::/16 dir out" in said
    assert "held" not in machine.uxfrm_says("release")
    with machine.left.entered():
        unbound(6, THERE.inner[6], None)
    assert echo.MARKER in machine.sent(1)[0]
    machine.here.kill()
    machine.here.start(states(), more=CONTROLLED)


def test_what_is_let_go_of_or_open_is_not_held(machine):
    """By `at_start`, and by an end that opens."""
    machine.run_and_end("kill")
    machine.here.write(states(), more=CONTROLLED)
    config = machine.here.directory / "config.toml"
    config.write_text(config.read_text().replace("[wire]", 'at_start = "open"\n[wire]', 1))
    machine.here.launch()
    with machine.left.entered():
        unbound(4, THERE.inner[4], None)
    machine.between.seen()
    with machine.left.entered():
        unbound(4, THERE.inner[4], None)
    assert echo.MARKER in machine.sent(1)[0]
    machine.here.stop()
    assert not machine.portrait.exists()


def test_what_is_held_passes_to_another_process(machine, uxfrm):
    machine.run_and_end("kill")
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    machine.here.upgrade()
    machine.assert_closed()
    machine.protect()
    machine.assert_protected()


@pytest.mark.parametrize("source", ["any", "own"])
@pytest.mark.parametrize("end", ["kill", "stop", "guard"])
def test_a_flushed_packet_filter_opens_nothing_that_rules_can_say(machine, uxfrm, end, source):
    """Not even to unbound sockets; what is bound to a device no rule keeps from taking its
    destination for a neighbour."""
    template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 1 mode tunnel"
    protected = {family: words if source == "own" else words[words.index("dst") :] for family, words in PROTECTED.items()}
    lines = [f"xfrm policy add {words} dir out priority 100 {template}" for words in protected.values()]
    lines += [f"xfrm policy add dst {passing} dir out priority 50" for passing in PASSING.values()]
    machine.here.start([*states(), *lines], more=CONTROLLED, at_exit="block")
    said = machine.uxfrm_says("check", machine.config)
    assert "rule 216 refuses without uxfrm, what programs here send: 10.2.0.0/16, but not 10.2.9.0/24" in said
    assert ("rule 217 refuses" in said) == (source == "any")
    machine.between.seen()
    machine.try_everything()
    frames = [frame for outgoing, frame in machine.between.seen() if outgoing]
    assert any(wire.protocol(frame) == "esp" for frame in frames), "while it runs no rule refuses"
    assert not any(echo.MARKER in frame for frame in frames)
    getattr(machine.here, "stop" if end == "guard" else end)()
    if end == "guard":
        machine.uxfrm_says("clean")
        machine.uxfrm_says("guard", machine.config)
    machine.left.run("nft", "flush", "ruleset")
    machine.between.seen()
    for family in (4, 6):
        for kind in SOCKETS:
            with machine.left.entered(), contextlib.suppress(OSError):
                kind(family, THERE.inner[family], HERE.inner[family])
        with machine.host.entered():
            for _ in range(3):
                unbound(family, THERE.inner[family], None)
        with machine.left.entered():
            unbound(family, PASSED[family], None)
    leaving = [frame for frame in machine.sent(2) if wire.protocol(frame) != "icmp"]
    assert [frame[12:14] for frame in leaving] == [b"\x08\x00", b"\x86\xdd"], [frame.hex() for frame in leaving]
    machine.uxfrm_says("clean")
    assert not {"216:", "217:"} & set(machine.left.ip("rule").split())


def test_a_reload_with_the_same_policy_takes_the_place_of_what_is_held(machine):
    machine.run_and_end("kill")
    machine.here.start(states(), more=CONTROLLED, at_exit="block")
    template = f"tmpl src {HERE.outer[4]} dst {THERE.outer[4]} proto esp reqid 1 mode tunnel"
    again = [f"xfrm policy add {words} dir out {template}" for words in PROTECTED.values()]
    machine.here.write([*states(), *again], more=CONTROLLED, at_exit="block")
    assert "+ policy" in machine.uxfrm_says("reload")
    machine.assert_protected()


def test_the_unit_is_one(tmp_path):
    """With the programs that it names."""
    prerequisite.programs(**{"systemd-analyze": "systemd"})
    for path in (prerequisite.REPOSITORY / "examples" / "systemd").iterdir():
        unit = path.read_text().replace("/usr/bin/uxfrm", shutil.which("true"))
        (tmp_path / path.name.replace("@", "@blue")).write_text(unit)
    command = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    mine = [line for line in done.stderr.splitlines() if "uxfrm" in line]
    assert done.returncode == 0 and not mine, done.stderr
