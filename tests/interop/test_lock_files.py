"""What lies in /run/uxfrm, and who locks it: nobody but a gateway keeps another from starting, and
none takes what another has."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile

import pytest

from gateway import CONTROLLED, Gateway
from stranger import USER, stranger
from test_control import network  # noqa: F401: a fixture

AS_USER = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
OWN_RUN = """#!/bin/sh
mount --bind {place} /run/uxfrm && exec {before} {uxfrm} "$@"
"""
LOCKS = """
import fcntl, json, os, sys
held, refused = {}, []
for top, _, files in os.walk(sys.argv[1]):
    for name in ("", *files):
        path = os.path.normpath(os.path.join(top, name))
        try:
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held[path] = opened
        except OSError:
            refused.append(path)
print(json.dumps([list(held), refused]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run():
    """A `/run/uxfrm` of the test's own, of root's."""
    with tempfile.TemporaryDirectory(prefix="uxfrm-run-") as place:
        os.chmod(place, 0o755)
        os.makedirs("/run/uxfrm", exist_ok=True)
        yield pathlib.Path(place)


def gateway(uxfrm, namespace, run, name, before=""):
    program = run.with_name(f"{run.name}-{name}")
    program.write_text(OWN_RUN.format(place=run, before=before, uxfrm=uxfrm))
    program.chmod(0o755)
    return Gateway(str(program), namespace)


@contextlib.contextmanager
def locked(run):
    """A user who has locked all that may be opened: that, and what may not."""
    command = [*AS_USER, "/usr/bin/python3", "-c", LOCKS, str(run)]
    user = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(user.stdout.readline())
    finally:
        user.communicate()


def number(namespace):
    with namespace.entered():
        return os.stat("/proc/thread-self/ns/net").st_ino


def lay(kind, path, victim):
    """What an earlier owner of the directory, or an earlier release, may have left."""
    if kind == "link":
        path.symlink_to(victim.with_name("nowhere"))
    elif kind == "hard link":
        victim.write_text("kept")
        victim.chmod(0o600)
        path.hardlink_to(victim)
    elif kind == "directory":
        path.mkdir()
    elif kind in ("readable", "user's"):
        path.write_text("")
        path.chmod(0o644 if kind == "readable" else 0o600)
        os.chown(path, 0 if kind == "readable" else USER, -1)


@pytest.mark.parametrize("kind", ["nothing", "readable", "user's", "link", "hard link"])
def test_no_lock_of_a_user_keeps_a_gateway_from_starting(network, uxfrm, run, tmp_path, kind):
    network.here.stop()
    own = number(network.left)
    started = gateway(uxfrm, network.left, run, kind.replace(" ", "-").replace("'", ""))
    for name in ("lock", f"{own}.lock"):
        lay(kind, run / name, tmp_path / f"victim-{name}")
    with contextlib.closing(started), stranger(network.left, "listens"):
        for _ in range(2):
            with locked(run) as (held, _):
                started.start([], more=CONTROLLED)
                assert "files stand in" in started.log() and "another gateway may remove" not in started.log()
                assert "SAD count 0" in network.left.run(started._binary, "xfrm", "state", "count")
                assert str(run) in held, "else nothing was tried"
            with locked(run) as (held, refused):
                assert str(run / str(own)) in held
                for name in ("lock", f"{own}.lock"):
                    assert (run / name).stat().st_mode & 0o7777 == 0o600
                    assert str(run / name) in refused
            started.kill()
    for victim in tmp_path.glob("victim-*"):
        assert victim.read_text() == "kept"
    assert not (tmp_path / "nowhere").exists()


def test_directory_in_a_lock_files_place_is_said(network, uxfrm, run):
    """Only whoever owns /run/uxfrm can put it there."""
    network.here.stop()
    for name in ("lock", f"{number(network.left)}.lock"):
        lay("directory", run / name, None)
    started = gateway(uxfrm, network.left, run, "directory")
    with contextlib.closing(started):
        started.start([], more=CONTROLLED)
        assert "another gateway may remove" in started.log() and "Is a directory" in started.log()
        started.stop()
        told = "somebody else has the abstract socket name uxfrm/stat, and /run/uxfrm can't be used: Is a directory"
        with stranger(network.left, "listens"), pytest.raises(AssertionError, match=told):
            started.start([], more=CONTROLLED)


def test_start_without_descriptors_takes_no_lock_from_another(network, uxfrm, run):
    network.here.stop()
    network.there.stop()
    own = number(network.left)
    lock, files = run / f"{own}.lock", run / str(own)
    running = gateway(uxfrm, network.left, run, "running")
    with contextlib.closing(running), stranger(network.left, "listens"):
        running.start([], more=CONTROLLED)
        before = lock.stat().st_ino, (run / "lock").stat().st_ino
        has_started = False
        for most in range(3, 256):
            short = gateway(uxfrm, network.right, run, "short", f"prlimit --nofile={most}:{most}")
            with contextlib.closing(short), stranger(network.right, "listens"):
                try:
                    short.start([], more=CONTROLLED)
                    has_started = True
                    short.stop()
                except AssertionError:
                    assert not has_started
            assert (lock.stat().st_ino, (run / "lock").stat().st_ino) == before, most
            assert {path.name for path in files.iterdir()} >= {"stat", "xfrm"}, most
            if has_started:
                break
        assert has_started and most > 10, "else no start came so far as to fail at a lock"
        assert "SAD count 0" in network.left.run(running._binary, "xfrm", "state", "count")
        running.stop()
