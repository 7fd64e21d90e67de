"""What a gateway that is up has left: the kernel tells it of each thread, each thread tries what
must be refused, and the gateway does its work with that, also as an ordinary user."""

import errno
import os
import pathlib
import re
import socket
import stat
import subprocess
import sys

import pytest

import injection
import patience
from association import GCM_128, Association
from gateway import CONTROLLED, Gateway
from test_reload import reload
from test_lifecycle import network  # noqa: F401: a fixture
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4)
# CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK
KEPT = 1 << 10 | 1 << 12 | 1 << 13 | 1 << 14
NOBODY = 65534


@pytest.fixture
def pair(uxfrm, network):
    gateways = [Gateway(uxfrm, side) for side in (network.left, network.right)]
    yield gateways
    for gateway in gateways:
        gateway.close()


SHADOW, ABSENT, LEFT = b"/etc/shadow", b"/nowhere", b"/tmp/uxfrm-test-broken-in"
AT_FDCWD = -100
SIGCHLD, CLONE_FS, CLONE_SIGHAND, CLONE_NEWNS, CLONE_NEWUSER = 17, 0x200, 0x800, 0x20000, 0x10000000
STREAM, DATAGRAM, SEQPACKET = 1, 2, 5
# What whoever breaks into a thread would try: calls of x86-64 with arguments by which they fail
# otherwise where nobody refuses them, but not with EPERM.
ATTACKS = {
    "execve": (59, ABSENT, 0, 0),
    "execveat": (322, -1, ABSENT, 0, 0, 0),
    "fork": (56, CLONE_SIGHAND | SIGCHLD),
    "a mount namespace by clone": (56, CLONE_FS | CLONE_NEWNS),
    "unshare": (272, -1),
    "setns": (308, -1, 0),
    "ptrace": (101, 7, -1),
    "process_vm_readv": (310, -1, 0, 0, 0, 0, 0),
    "pidfd_open": (434, -1, 0),
    "kill": (62, 1, 0),
    "mount": (165, 0, ABSENT, 0, 0, 0),
    "fsopen": (430, 0, 0),
    "open_by_handle_at": (304, -1, 0, 0),
    "finit_module": (313, -1, 0, 0),
    "init_module": (175, 0, 0, 0),
    "kexec_load": (246, 0, -1, 0, 0),
    "io_uring_setup": (425, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "userfaultfd": (323, -1),
    "keyctl": (250, -1, 0, 0, 0, 0),
    "add_key": (248, 0, 0, 0, 0, 0),
    "bpf": (321, -1, 0, 0),
    "personality": (135, 0xFFFFFFFF),
    "modify_ldt": (154, -1, 0, 0),
    "core dumps again": (157, 4, 1, 0, 0, 0),
    "keystrokes by a terminal": (16, -1, 0x5412, 0),
    "signals by a terminal's call": (16, -1, 0x8901, 0),
    "signals by F_SETOWN": (72, -1, 8, 1),
    "another signal by F_SETSIG": (72, -1, 10, 9),
    "signals by O_ASYNC": (72, -1, 4, 0x2000),
    "another's limits": (302, 0x7FFFFFFF, 0, 0, 0),
    "a set-user-ID file": (91, -1, 0o4755),
    "a set-group-ID file from the start": (257, AT_FDCWD, ABSENT, os.O_CREAT, 0o2755),
    "AF_UNIX": (41, 1, STREAM, 0),
    "TCP": (41, 2, STREAM, 0),
    "TCP over IPv6": (41, 10, STREAM, 0),
    "AF_ALG": (41, 38, SEQPACKET, 0),
    "AF_VSOCK": (41, 40, STREAM, 0),
    "AF_KEY": (41, 15, 3, 2),
    "uevents that udev believes": (41, 16, 3, 15),
    "IPsec of the kernel": (41, 16, 3, 6),
    "audit": (41, 16, 3, 9),
    "generic netlink": (41, 16, 3, 16),
    "AF_TIPC": (41, 30, SEQPACKET, 0),
    "executable memory": (9, 0, 4096, 7, 0x22, -1, 0),
}
OPENS = {
    "another's file": (257, AT_FDCWD, SHADOW, os.O_RDONLY),
    "a file by its old call": (2, SHADOW, os.O_RDONLY),
    "another process": (257, AT_FDCWD, b"/proc/1/environ", os.O_RDONLY),
    "a setting of the kernel's": (257, AT_FDCWD, b"/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "a new file": (257, AT_FDCWD, LEFT, os.O_WRONLY | os.O_CREAT, 0o600),
    "a new directory": (83, LEFT, 0o700),
}


@pytest.fixture
def needs_injection():
    if not injection.SUPPORTED:
        pytest.skip("threads are made to call on x86-64 alone")


def attempts(gateway, attacks):
    """What each thread of a gateway gets for each attack: an errno, or 0."""
    process, answers = gateway.pid, {}
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        name = (task / "comm").read_text().strip()
        with injection.stopped(process, int(task.name)) as thread:
            for attack, call in attacks.items():
                answers[name, attack] = max(-thread.call(*call), 0)
    return answers


def threads(gateway):
    """The status of each thread, by its name; those of one name together."""
    found = {}
    for task in pathlib.Path(f"/proc/{gateway.pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found.setdefault(status["Name"].strip(), []).append(status)
    return found


def wait_for_filters(gateway):
    """A thread takes its filter as it begins, a moment after it can be seen."""
    patience.wait_for(lambda: {status["Seccomp"].strip() for statuses in threads(gateway).values() for status in statuses} == {"2"}, "filters", 20)


def test_a_gateway_has_no_program_of_its_own_started(uxfrm, network, pair, needs_injection):
    """Its supervisor, which has all privileges, starts whom it names; but nothing that it may
    have written."""
    left, _right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    process = left.pid
    written = str(left.directory / "sequences" / "own").encode()
    program = pathlib.Path(uxfrm).read_bytes()
    said = b"\0S" + written
    with injection.stopped(process, process) as thread:
        file = thread.call(257, AT_FDCWD, written, os.O_WRONLY | os.O_CREAT, 0o700)
        assert file >= 0
        assert thread.call(1, file, program[:1024], 1024) == 1024
        thread.call(3, file)
    assert os.stat(written).st_size == 1024
    with open(written, "wb") as whole:
        whole.write(program)
    with injection.stopped(process, process) as thread:
        assert thread.call(1, 0, said, len(said)) == len(said)
    # The supervisor does one thing after another: what it is asked for next is answered when this
    # is done.
    assert "the gateway itself may write to" in left.upgrade(written.decode(), check=False)
    assert left.pid == process and os.readlink(f"/proc/{process}/exe") == os.path.realpath(uxfrm)


def test_the_service_manager_hears_only_what_a_gateway_has_to_say(network, pair, needs_injection, monkeypatch, tmp_path):
    """Whoever broke in would have the unit be another process, or its descriptors be forgotten."""
    left, _right = pair
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
        assert manager.recv(4096).strip() == b"READY=1"
        said = b"\0NMAINPID=4242\nFDSTOREREMOVE=1\nFDNAME=x\nNOTIFYACCESS=all"
        for task in pathlib.Path(f"/proc/{left.pid}/task").iterdir():
            with injection.stopped(left.pid, int(task.name)) as thread:
                assert thread.call(1, 0, said, len(said)) == len(said)
        left.stop()
        # What it said itself comes after that.
        assert manager.recv(4096).strip() == b"STOPPING=1"


def test_each_thread_keeps_only_what_it_needs(network, pair):
    left, right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    network.left.ping(HERE.inner[4], THERE.inner[4])
    wait_for_filters(left)
    found = threads(left)
    assert any("lane" in name or "uxfrm-" in name for name in found), found.keys()
    for name, statuses in found.items():
        for status in statuses:
            for capabilities in ("CapPrm", "CapEff", "CapBnd"):
                assert int(status[capabilities], 16) & ~KEPT == 0, (name, capabilities, status[capabilities])
            assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0, name
            assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2"), name
    (answering,) = found["uxfrm-status"]
    assert int(answering["CapPrm"], 16) & ~(1 << 14) == 0, "who answers `uxfrm status` has but CAP_IPC_LOCK"


def test_who_takes_over_keeps_as_little(network, pair):
    left, right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    # Once more than Landlock's domains go into each other, did they add up.
    for _ in range(17):
        before = left.pid
        left.upgrade()
        assert left.pid != before
    wait_for_filters(left)
    for name, statuses in threads(left).items():
        for status in statuses:
            assert int(status["CapPrm"], 16) & ~KEPT == 0, (name, status["CapPrm"])
            assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2"), name
            assert int(status["Seccomp_filters"]) <= 3, name
    network.left.ping(HERE.inner[4], THERE.inner[4])
    assert "keeps more than it needs" not in left.log()
    left.stop()


def test_no_thread_gets_what_whoever_breaks_in_would_try(network, pair, needs_injection):
    left, right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    network.left.run(str(left._binary), "fou", "add", "port", "5555", "ipproto", "4")
    refused = attempts(left, ATTACKS)
    assert len({name for name, _ in refused}) >= 4, refused.keys()
    assert {answer: number for answer, number in refused.items() if number != errno.EPERM} == {}
    opened = attempts(left, OPENS)
    assert {answer: number for answer, number in opened.items() if number not in (errno.EPERM, errno.EACCES)} == {}
    assert not os.path.exists(LEFT)
    network.left.ping(HERE.inner[4], THERE.inner[4])
    left.stop()


def test_who_answers_status_opens_no_socket(network, pair, needs_injection):
    left, _right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    sockets = {"UDP": (41, 2, DATAGRAM, 0), "netlink": (41, 16, 3, 0), "packets": (41, 17, 3, 0), "names": (49, -1, 0, 0)}
    answers = attempts(left, sockets)
    of_status = {attack: number for (name, attack), number in answers.items() if name == "uxfrm-status"}
    assert of_status == dict.fromkeys(sockets, errno.EPERM), of_status
    assert 0 in answers.values(), "another thread may"
    assert "uxfrm 0" in network.left.run(str(left._binary), "status"), "it goes on to answer"


def test_a_gateway_reaches_nothing_of_another_one_s(network, pair, needs_injection):
    """Sockets' files and witnesses of all lie in one directory, in one of its own each."""
    gateways, places = pair, []
    for gateway, ends in zip(gateways, ((HERE, THERE), (THERE, HERE))):
        gateway.start(PROTECTED.lines(*ends), more=CONTROLLED)
        with gateway.namespace.entered():
            number = os.stat("/proc/thread-self/ns/net").st_ino
        witness = str(gateway.directory / "sequences").strip("/").replace("/", "-")
        places.append([pathlib.Path("/run/uxfrm", name) for name in (str(number), witness)])
        assert all(place.is_dir() for place in places[-1])
    left, _ = gateways
    own, others = places

    def makes(directory):
        file = bytes(directory / "own")
        return {"made": (257, AT_FDCWD, file, os.O_WRONLY | os.O_CREAT, 0o600), "removed": (87, file)}

    for directory in (*others, pathlib.Path("/run/uxfrm")):
        answers = attempts(left, {"made": makes(directory)["made"]})
        assert {answer: number for answer, number in answers.items() if number not in (errno.EPERM, errno.EACCES)} == {}, directory
    windows = others[1] / "received.windows"
    taken = attempts(left, {"removed": (87, bytes(windows)), "opened": (257, AT_FDCWD, bytes(windows), os.O_RDWR)})
    assert set(taken.values()) <= {errno.EPERM, errno.EACCES} and windows.exists(), taken
    # The counter-test: the thread that looks after all writes to its own.
    for directory in own:
        with injection.stopped(left.pid, left.pid) as thread:
            calls = makes(directory)
            assert thread.call(*calls["made"]) >= 0
            assert thread.call(*calls["removed"]) == 0


@pytest.mark.parametrize("name", ["config.toml", "xfrm.batch", "config.new"])
def test_a_gateway_writes_nothing_that_its_successor_is_told_by(network, pair, needs_injection, name):
    """Its store and its control socket lie beside the configuration, which could have the next
    one begin with no sandbox."""
    left, _ = pair
    place = left.directory / name
    socket = f'socket = "{left.directory / "control"}"\n'
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED + socket)
    before = place.read_bytes() if place.exists() else None
    call = (257, AT_FDCWD, str(place).encode(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    moved = (264, AT_FDCWD, str(left.directory / "sequences" / "sequences").encode(), AT_FDCWD, str(place).encode())
    answers = attempts(left, {"written": call, "moved there": moved})
    assert set(answers.values()) <= {errno.EPERM, errno.EACCES, errno.EXDEV}, answers
    assert (place.read_bytes() if place.exists() else None) == before
    # The counter-test, and an end that leaves the socket's file to the next start.
    with injection.stopped(left.pid, left.pid) as thread:
        assert thread.call(257, AT_FDCWD, str(left.directory / "sequences" / "x").encode(), os.O_WRONLY | os.O_CREAT, 0o600) >= 0
    left.stop()
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED + socket)
    left.stop()


def test_without_it_nothing_refuses_that(network, pair, needs_injection):
    """So that the test above sees something."""
    left, _ = pair
    left.write(PROTECTED.lines(HERE, THERE))
    path = left.directory / "config.toml"
    path.write_text(path.read_text().replace("[runtime]", "[runtime]\nsandbox = false"))
    run(left)
    # What would hurt the gateway if it came about.
    harmless = {name: call for name, call in ATTACKS.items() if name not in ("personality", "core dumps again")}
    answers = attempts(left, harmless)
    assert {answer: number for answer, number in answers.items() if number == errno.EPERM} == {}
    answers = attempts(left, {"another's file": OPENS["another's file"]})
    assert set(answers.values()) == {0}
    left.stop()


def test_it_goes_on_with_that(network, pair):
    """What a running gateway does by and by: files, clients, tunnels, rekeys, links that come
    and go, an orderly end."""
    left, right = pair
    left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    left.ip("xfrm policy add src 10.7.9.0/24 dst 10.8.0.0/24 dir in action block")
    left.write([*PROTECTED.lines(HERE, THERE), "xfrm policy add src 10.7.1.0/24 dst 10.8.0.0/24 dir in action block"], more=CONTROLLED)
    assert "10.7.1.0/24" in reload(left)
    uxfrm = str(left._binary)
    network.left.run(uxfrm, "fou", "add", "port", "5555", "ipproto", "4")
    network.left.run(uxfrm, "link", "add", "name", "tun7", "type", "gre", "local", HERE.outer[4], "remote", THERE.outer[4])
    network.left.run(uxfrm, "link", "del", "tun7")
    network.left.run(uxfrm, "stat", "--reasons")
    network.left.ip("link set uxfrm0 down")
    network.left.ip("link set uxfrm0 up")
    network.left.run("nft", "list", "ruleset")
    network.left.ping(HERE.inner[4], THERE.inner[4])
    for _ in range(2):
        left.stop()
        left.start(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
        network.left.ping(HERE.inner[4], THERE.inner[4])
    assert "Operation not permitted" not in left.log() and "Permission denied" not in left.log(), left.log()
    left.stop()


def run(gateway, *before):
    """Starts it with the configuration that was written, by way of other programs."""
    with open(gateway.directory / "log", "w") as log:
        gateway._process = subprocess.Popen(
            ["ip", "netns", "exec", gateway.namespace.name, *before, gateway._binary, "run", gateway.directory / "config.toml"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    gateway._wait_until_ready()


def test_a_configuration_can_leave_it_all(network, pair):
    left, _ = pair
    left.start(PROTECTED.lines(HERE, THERE))
    assert "keeps all its privileges" not in left.log()
    left.stop()
    path = left.directory / "config.toml"
    path.write_text(path.read_text().replace("[runtime]", "[runtime]\nsandbox = false"))
    run(left)
    assert "keeps all its privileges" in left.log()
    status = pathlib.Path(f"/proc/{left.pid}/status").read_text()
    assert re.search(r"^Seccomp:\s+0$", status, re.M)
    assert "keeps all its privileges" in network.left.run(str(left._binary), "check", str(path)).replace("would keep", "keeps")
    left.stop()


def test_it_runs_where_a_container_refuses_all_of_that(network, pair):
    """And says so, once; `check` foretells it."""
    left, right = pair
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    left.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    inside = [sys.executable, str(pathlib.Path(__file__).with_name("container.py"))]
    run(left, *inside)
    said = [line for line in left.log().splitlines() if "keeps more than it needs" in line]
    parts = ("capabilities are not dropped", "system calls are not filtered", "files are not fenced off")
    assert len(said) == 1 and all(part in said[0] for part in parts), left.log()
    foretold = network.left.run(*inside, str(left._binary), "check", str(left.directory / "config.toml"))
    assert "would keep more than it needs" in foretold and all(part in foretold for part in parts)
    for statuses in threads(left).values():
        for status in statuses:
            assert int(status["CapPrm"], 16) & ~KEPT == 0, "what can be dropped is"
    network.left.ping(HERE.inner[4], THERE.inner[4])
    left.stop()


def test_files_of_its_directories_are_read_again_and_no_others(network, pair, tmp_path):
    left, _ = pair
    lines = PROTECTED.lines(HERE, THERE)
    left.start(lines, more=CONTROLLED)
    added = "xfrm policy add src 10.7.1.0/24 dst 10.8.0.0/24 dir in action block"
    config, new = left.directory / "config.toml", left.directory / "new.batch"
    new.write_text("".join(f"{line}\n" for line in [*lines, added]))
    text = config.read_text()
    # As an editor saves a file: another takes its place.
    (left.directory / "config.new").write_text(text.replace("xfrm.batch", "new.batch"))
    os.rename(left.directory / "config.new", config)
    assert "10.7.1.0/24" in reload(left)
    elsewhere = tmp_path / "xfrm.batch"
    elsewhere.write_text(left.batch.read_text())
    config.write_text(text.replace(str(left.batch), str(elsewhere)))
    told = reload(left, check=False)
    assert str(elsewhere) in told and "Permission denied" in told and "restart it" in told
    config.write_text(text)
    assert "10.7.1.0/24" in reload(left), "what was refused changed nothing"
    left.stop()


def test_root_goes_on_reading_what_belongs_to_others(network, pair):
    """Which takes a capability, that it keeps then alone."""
    left, _ = pair
    left.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    os.chown(left.batch, NOBODY, NOBODY)
    os.chmod(left.batch, 0o600)
    run(left)
    added = "xfrm policy add src 10.7.1.0/24 dst 10.8.0.0/24 dir in action block"
    left.batch.write_text("".join(f"{line}\n" for line in [*PROTECTED.lines(HERE, THERE), added]))
    assert "10.7.1.0/24" in reload(left)
    overrides = 1 << 1
    kept = {name: int(status["CapEff"], 16) & overrides for name, statuses in threads(left).items() for status in statuses}
    first = pathlib.Path(f"/proc/{left.pid}/comm").read_text().strip()
    assert [name for name, has in kept.items() if has] == [first], kept
    left.stop()


def test_the_end_of_standard_input_is_heard(network, pair):
    left, _ = pair
    left.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    with open(left.directory / "log", "w") as log:
        left._process = subprocess.Popen(
            ["ip", "netns", "exec", network.left.name, left._binary, "run", "--until-stdin-ends", left.directory / "config.toml"],
            stdin=subprocess.PIPE, stdout=log, stderr=log)
    left._wait_until_ready()
    wait_for_filters(left)
    left._process.stdin.close()
    assert left._process.wait(20) == 0


def test_an_ordinary_user_with_two_capabilities_runs_it(network, pair):
    """As the systemd unit does: `AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW`, and a directory
    of its own."""
    left, right = pair
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    left.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    os.chmod(left.directory, 0o755)
    for path in left.directory.iterdir():
        os.chmod(path, 0o644)
    os.chown(left.directory, NOBODY, NOBODY)
    # As udev has it: everybody may open it.
    device = left.directory / "tun"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 200))
    os.chmod(device, 0o666)
    command = ["sh", "-c", f'mount --bind {device} /dev/net/tun && exec "$@"', "sh", "setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups",
               "--inh-caps", "-all,+net_admin,+net_raw", "--ambient-caps", "-all,+net_admin,+net_raw", "--bounding-set", "-all,+net_admin,+net_raw"]
    run(left, *command)
    for statuses in threads(left).values():
        for status in statuses:
            assert status["Uid"].split()[0] == str(NOBODY)
            assert int(status["CapPrm"], 16) & ~(1 << 12 | 1 << 13) == 0
    network.left.ping(HERE.inner[4], THERE.inner[4])
    left.stop()


SERVICE = 65500


def test_root_s_tools_serve_a_gateway_that_runs_as_its_unit_does(network, pair):
    """With `User=` and `RuntimeDirectory=uxfrm`: root's clients trust whom root has given
    /run/uxfrm, and nobody else who has the name."""
    left, right = pair
    right.start(PROTECTED.lines(THERE, HERE), more=CONTROLLED)
    left.write(PROTECTED.lines(HERE, THERE), more=CONTROLLED)
    for path in left.directory.iterdir():
        os.chmod(path, 0o644)
    os.chmod(left.directory, 0o755)
    os.chown(left.directory, SERVICE, SERVICE)
    runtime, device = left.directory / "run", left.directory / "tun"
    runtime.mkdir(mode=0o755)
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 200))
    os.chmod(device, 0o666)
    # Binding over a directory of the host's would be seen by other tests.
    as_unit = f"mount --bind {device} /dev/net/tun && mount -t tmpfs -o mode=755 run /run && mkdir /run/uxfrm && mount --bind {runtime} /run/uxfrm"
    as_service = ["sh", "-c", as_unit + ' && exec "$@"', "sh", "setpriv", "--reuid", str(SERVICE), "--regid", str(SERVICE), "--clear-groups",
                  "--inh-caps", "-all,+net_admin,+net_raw", "--ambient-caps", "-all,+net_admin,+net_raw", "--bounding-set", "-all,+net_admin,+net_raw"]
    as_root = ["sh", "-c", as_unit + ' && exec "$@"', "sh"]
    preloaded = pathlib.Path(left._binary).with_name("libuxfrm_redirect.so")

    def tool(*words):
        return network.left.run(*as_root, str(left._binary), *words, check=False)

    for is_given in (False, True):
        os.chown(runtime, *(SERVICE, SERVICE) if is_given else (0, 0))
        run(left, *as_service)
        said = [tool("stat"), tool("xfrm", "state", "count"), tool("exec", "--", "ip", "xfrm", "state", "count"), tool("reload")]
        by_library = network.left.run(*as_root, "env", f"LD_PRELOAD={preloaded}", "ip", "xfrm", "state", "count", check=False)
        if not is_given:
            assert all(f"user {SERVICE}, who is neither root nor you, has its name" in one for one in said), said
            assert "RuntimeDirectory=uxfrm" in said[0]
            assert "Operation not permitted" in by_library, by_library
        else:
            assert "XfrmInError" in said[0] and "SAD count 2" in said[1] and "SAD count 2" in said[2] and said[3] == "nothing is different\n", said
            assert "SAD count 2" in by_library, by_library
            network.left.ping(HERE.inner[4], THERE.inner[4])
        left.stop()
