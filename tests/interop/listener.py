"""Programs that listen for what a gateway or the kernel tells. Whoever starts one gets on only
when it is known there: what happens from then on it hears."""

import contextlib
import pathlib
import re
import subprocess

import patience

CONTROL_NAMES = re.compile("@uxfrm/xfrm|/run/uxfrm/[0-9]+/xfrm")
CONNECTED = "03"
NETLINK_ROUTE = "0"


@contextlib.contextmanager
def of_gateway(namespace, binary, *command, **options):
    """A client of the gateway that waits for events."""
    with _started(namespace, command, options, _clients) as process:
        patience.wait_for(lambda: _state(process.pid) == "S", "it does not wait for events")
        # The gateway answers in order: with this answer it knows of who asked before.
        namespace.run(str(binary), "xfrm", "state", "count")
        yield process


@contextlib.contextmanager
def of_routes(namespace, *command, **options):
    """A program that the kernel tells of routes."""
    with _started(namespace, command, options, _members) as process:
        yield process


@contextlib.contextmanager
def _started(namespace, command, options, known):
    before = known(namespace)
    with namespace.entered():
        process = subprocess.Popen([str(word) for word in command], **options)
    try:
        patience.wait_for(lambda: known(namespace) - before, lambda: f"{command} does not listen")
        yield process
    finally:
        process.terminate()
        process.wait()


def _clients(namespace):
    """Connections that the gateway has accepted, by their inodes."""
    lines = _table(namespace, "unix")
    return {line[6] for line in lines if line[5] == CONNECTED and _is_control(line[7:])}


def _is_control(names):
    return any(CONTROL_NAMES.fullmatch(name) for name in names)


def _members(namespace):
    """Sockets that are members of groups of rtnetlink, by their inodes."""
    lines = _table(namespace, "netlink")
    return {line[-1] for line in lines if line[1] == NETLINK_ROUTE and int(line[3], 16) != 0}


def _table(namespace, name):
    with namespace.entered():
        lines = pathlib.Path(f"/proc/thread-self/net/{name}").read_text().splitlines()
    return [line.split() for line in lines[1:]]


def last_child(process):
    """The process itself, or the last one that it has started, and so on."""
    while children := pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split():
        process = int(children[-1])
    return process


def _state(process):
    return pathlib.Path(f"/proc/{last_child(process)}/stat").read_text().rpartition(")")[2].split()[0]
