"""Network namespaces, the links between them, and what a test does inside one."""

import contextlib
import ctypes
import os
import pathlib
import re
import subprocess
import time

import patience

CLONE_NEWNET = 0x40000000
UNANSWERED_SECONDS = 2  # for pings that nobody is to answer
LISTENS = "00010000"  # __SO_ACCEPTCON
ADDRESS_SECONDS = CARRIER_SECONDS = patience.SECONDS
_libc = ctypes.CDLL(None, use_errno=True)


def _set_namespace(descriptor):
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def command(*words, check=True):
    """Runs a command and returns what it printed; a failure carries the command's own words."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


class Namespace:
    """One network namespace of the test's own, with `lo` up and no IPv6 chatter; deleted by
    `delete`."""

    def __init__(self, name):
        self.name = name
        command("ip", "netns", "add", name)
        self._quieten_ipv6()
        self.ip("link set lo up")

    def _quieten_ipv6(self):
        with self.entered():
            for setting in ("accept_dad", "router_solicitations", "accept_ra"):
                for scope in ("all", "default"):
                    pathlib.Path(f"/proc/sys/net/ipv6/conf/{scope}/{setting}").write_text("0")

    def delete(self):
        command("ip", "netns", "delete", self.name)

    def ip(self, words):
        """`ip -n NAME WORDS`."""
        return command("ip", "-n", self.name, *words.split())

    def run(self, *words, check=True):
        return command("ip", "netns", "exec", self.name, *words, check=check)

    @contextlib.contextmanager
    def entered(self):
        """This thread is in the namespace meanwhile; sockets and processes made here stay in it
        afterwards."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(home.fileno())

    def address(self, device, *addresses):
        for address in addresses:
            nodad = " nodad" if ":" in address else ""
            self.ip(f"addr add {address} dev {device}{nodad}")

    def neighbour(self, device, mac, *addresses):
        """A fixed neighbour: its discovery is traffic too, and would meet the policies under
        test."""
        for address in addresses:
            self.ip(f"neigh replace {address} lladdr {mac} dev {device} nud permanent")

    def mac(self, device):
        return self.ip(f"-br link show dev {device}").split()[2]

    def wait_for_carrier(self, device):
        """Until the kernel has taken note that the device's other end is up: before, it drops
        what is to leave by it."""
        deadline = time.monotonic() + CARRIER_SECONDS
        while "LOWER_UP" not in (link := self.ip(f"-br link show dev {device}")):
            assert time.monotonic() < deadline, f"no carrier after {CARRIER_SECONDS} s: {link}"
            time.sleep(0.005)

    def wait_for_no_address(self, address):
        """Until no device has it."""
        deadline = time.monotonic() + ADDRESS_SECONDS
        while address in (addresses := self.ip("address")):
            assert time.monotonic() < deadline, f"after {ADDRESS_SECONDS} s still:\n{addresses}"
            time.sleep(0.05)

    def listens(self, path):
        """Whether somebody listens at this Unix socket: its file is there a moment before."""
        with self.entered():
            lines = pathlib.Path("/proc/thread-self/net/unix").read_text().splitlines()[1:]
        return any(line.split()[3] == LISTENS and line.endswith(f" {path}") for line in lines)

    def tap(self, device):
        self.ip(f"tuntap add {device} mode tap")
        self.ip(f"link set {device} up")

    def ping(self, source, destination, count=3, size=120, seconds=patience.SECONDS):
        """Pings with the marker as payload; raises with ping's own words when no reply has come
        for so long."""
        import echo

        self.run(*ping_command(source, destination, echo.MARKER, count, size, seconds).split())


def ping_command(source, destination, marker, count=3, size=120, seconds=patience.SECONDS):
    """`seconds` is how long it waits where none is answered."""
    return f"ping -q -c {count} -i 0.02 -W {seconds} -s {size} -p {marker.hex()} -I {source} {destination}"


def received(said):
    """How many answers ping counts in what it said."""
    return int(re.search(r"(\d+) received", said)[1])


def veth(left, left_device, right, right_device):
    """Joins two namespaces by a veth pair, both ends up."""
    left.ip(f"link add {left_device} type veth peer name {right_device} netns {right.name}")
    left.ip(f"link set {left_device} up")
    right.ip(f"link set {right_device} up")
