"""The networks in which the interop tests run."""

import contextlib
import os

import echo
from association import Side
from gateway import Gateway
from linux_guest import LinuxGuest, QemuGuest
from namespace import Namespace, veth
from wire import Wire

PREFIX = f"ux{os.getpid()}"  # each process of the suite has names of its own
HERE = Side(outer={4: "10.9.0.1", 6: "fd09::1"}, inner={4: "10.1.0.1", 6: "fd01::1"}, spi=0x1000)
THERE = Side(outer={4: "10.9.0.2", 6: "fd09::2"}, inner={4: "10.2.0.1", 6: "fd02::1"}, spi=0x2000)


class Hosts(contextlib.ExitStack):
    """Namespaces, gateways and sockets that go away together, the last made first; also when
    building fails half-way."""

    def __init__(self, *arguments):
        super().__init__()
        self.gateways = []
        try:
            self._build(*arguments)
        except BaseException:
            self.close()
            raise

    def _build(self):
        """Nothing yet: the caller adds what it needs."""

    def namespace(self, name):
        made = Namespace(f"{PREFIX}-{name}")
        self.callback(made.delete)
        return made

    def wire(self, namespace, device):
        made = Wire(namespace, device)
        self.callback(made.close)
        return made

    def gateway(self, binary, namespace):
        made = Gateway(binary, namespace)
        self.callback(made.close)
        self.gateways.append(made)
        return made

    def echo(self, namespace):
        with namespace.entered():
            made = echo.EchoServer()
        self.callback(made.close)


def place(namespace, device, side):
    """Gives a namespace its side's addresses: on the wire, and behind it on `lo`."""
    namespace.address(device, f"{side.outer[4]}/24", f"{side.outer[6]}/64")
    namespace.address("lo", f"{side.inner[4]}/32", f"{side.inner[6]}/128")


class UxfrmAndLinux(Hosts):
    """uxfrm and a real Linux kernel on one wire.

        ┌─ namespace linux ──────────────┐         ┌─ Linux 6.1, User-Mode Linux ─┐
        │ lo      10.1.0.1  fd01::1      │   TAP   │ lo    10.2.0.1  fd02::1      │
        │ uxfrm0  (TUN)                  │         │                              │
        │ tap0    10.9.0.1  fd09::1  ────┼─────────┼─ vec0 10.9.0.2  fd09::2      │
        └────────────────────────────────┘    ▲    └──────────────────────────────┘
                                             wire: sees all that passes
    """

    name, guest = "linux", LinuxGuest

    def _build(self):
        self.here = self.namespace(self.name)
        self.here.tap("tap0")
        place(self.here, "tap0", HERE)
        self.linux = self.guest(self.here, "tap0")
        self.callback(self.linux.close)
        self._place_linux()
        self.echo(self.here)
        self.between = self.wire(self.here, "tap0")

    def _place_linux(self):
        mac = self.linux.run("cat /sys/class/net/vec0/address").strip()
        self.here.neighbour("tap0", mac, THERE.outer[4], THERE.outer[6])
        mac = self.here.mac("tap0")
        self.linux.run(
            f"""set -e
            ip addr add {THERE.outer[4]}/24 dev vec0; ip addr add {THERE.outer[6]}/64 dev vec0 nodad
            ip addr add {THERE.inner[4]}/32 dev lo;   ip addr add {THERE.inner[6]}/128 dev lo nodad
            ip neigh replace {HERE.outer[4]} lladdr {mac} dev vec0 nud permanent
            ip neigh replace {HERE.outer[6]} lladdr {mac} dev vec0 nud permanent
            ip route add {HERE.inner[4]}/32 via {HERE.outer[4]} src {THERE.inner[4]}
            ip route add {HERE.inner[6]}/128 via {HERE.outer[6]} src {THERE.inner[6]}"""
        )


class UxfrmAndQemu(UxfrmAndLinux):
    """The same with Debian's cloud kernel, which sends FOU and GUE as well."""

    name, guest = "qemu", QemuGuest


class UxfrmAndWire(Hosts):
    """A namespace whose peer is the test itself: scapy reads and writes the frames.

        ┌─ namespace alone ──────────────┐         ┌─ namespace scapy ─┐
        │ lo      10.1.0.1  fd01::1      │  veth   │  no address:      │
        │ uxfrm0  (TUN)                  │         │  nothing answers  │
        │ wire0   10.9.0.1  fd09::1  ────┼─────────┼─ far0  wire ◄──── the test
        └────────────────────────────────┘         └───────────────────┘
    """

    def _build(self):
        self.here, far = self.namespace("alone"), self.namespace("scapy")
        veth(self.here, "wire0", far, "far0")
        place(self.here, "wire0", HERE)
        self.here.neighbour("wire0", far.mac("far0"), THERE.outer[4], THERE.outer[6])
        self.mac = self.here.mac("wire0")
        self.echo(self.here)
        self.far = self.wire(far, "far0")


class LinuxAndWire(Hosts):
    """The same for Linux, so that the scapy cases are themselves checked against the kernel.

        ┌─ namespace oracle ─┐         ┌─ Linux 6.1, User-Mode Linux ─┐
        │  no address        │   TAP   │ lo    10.1.0.1  fd01::1      │
        │  test ────► tap0 ──┼─────────┼─ vec0 10.9.0.1  fd09::1      │
        └────────────────────┘         └──────────────────────────────┘
    """

    def _build(self):
        outside = self.namespace("oracle")
        outside.tap("tap0")
        self.linux = LinuxGuest(outside, "tap0")
        self.callback(self.linux.close)
        self.mac = self.linux.run("cat /sys/class/net/vec0/address").strip()
        self._place(outside.mac("tap0"))
        self.far = self.wire(outside, "tap0")

    def _place(self, far_mac):
        self.linux.run(
            f"""set -e
            ip addr add {HERE.outer[4]}/24 dev vec0; ip addr add {HERE.outer[6]}/64 dev vec0 nodad
            ip addr add {HERE.inner[4]}/32 dev lo;   ip addr add {HERE.inner[6]}/128 dev lo nodad
            ip neigh replace {THERE.outer[4]} lladdr {far_mac} dev vec0 nud permanent
            ip neigh replace {THERE.outer[6]} lladdr {far_mac} dev vec0 nud permanent
            ip route add {THERE.inner[4]}/32 via {THERE.outer[4]} src {HERE.inner[4]}
            ip route add {THERE.inner[6]}/128 via {THERE.outer[6]} src {HERE.inner[6]}"""
        )


class TwoGateways(Hosts):
    """Two namespaces joined by a veth, for uxfrm at both ends; names and addresses are the test's.

        ┌─ namespace left ─┐   veth   ┌─ namespace right ─┐
        │        DEVICE ───┼──────────┼─── DEVICE         │
        └──────────────────┘    ▲     └───────────────────┘
                               wire
    """

    def _build(self, device):
        self.left, self.right = self.namespace("left"), self.namespace("right")
        veth(self.left, device, self.right, device)
        for namespace in (self.left, self.right):
            self.echo(namespace)
        self.between = self.wire(self.left, device)


class PlacedGateways(TwoGateways):
    """The same, left as `HERE` and right as `THERE`: with addresses, neighbours and routes to
    what is behind the other."""

    def _build(self):
        super()._build("wire0")
        place(self.left, "wire0", HERE)
        place(self.right, "wire0", THERE)
        self.left.neighbour("wire0", self.right.mac("wire0"), THERE.outer[4], THERE.outer[6])
        self.right.neighbour("wire0", self.left.mac("wire0"), HERE.outer[4], HERE.outer[6])
        for family in (4, 6):
            self.left.ip(f"route add {THERE.inner[family]} via {THERE.outer[family]} src {HERE.inner[family]}")
            self.right.ip(f"route add {HERE.inner[family]} via {HERE.outer[family]} src {THERE.inner[family]}")


class Sites(Hosts):
    """Two gateways, each with a host behind it. The nets behind them have IPv6 as well: fd01::/64
    and fd02::/64.

        10.1.0.2                                                                 10.2.0.2
        ┌─ host left ─┐    ┌─ left ────────────┐  veth  ┌─ right ───────────┐    ┌─ host right ─┐
        │        eth0 ┼────┼ lan0        wire0 ┼────────┼ wire0        lan0 ┼────┼ eth0         │
        └─────────────┘    └───────────────────┘   ▲    └───────────────────┘    └──────────────┘
                           10.1.0.1     10.9.0.1  wire  10.9.0.2     10.2.0.1
    """

    names = ""

    def _build(self):
        self.left, self.left_host = self._site(f"{self.names}left", "10.1.0.", "fd01::")
        self.right, self.right_host = self._site(f"{self.names}right", "10.2.0.", "fd02::")
        self._join()

    def _site(self, name, net, net6):
        gateway, host = self.namespace(name), self.namespace(f"{name}-host")
        veth(gateway, "lan0", host, "eth0")
        gateway.address("lan0", f"{net}1/24", f"{net6}1/64")
        host.address("eth0", f"{net}2/24", f"{net6}2/64")
        host.ip(f"route add default via {net}1")
        host.ip(f"-6 route add default via {net6}1")
        gateway.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self.echo(host)
        self.echo(gateway)
        return gateway, host

    def _join(self):
        veth(self.left, "wire0", self.right, "wire0")
        self.left.address("wire0", "10.9.0.1/24")
        self.right.address("wire0", "10.9.0.2/24")
        self.left.ip("route add default via 10.9.0.2")
        self.right.ip("route add default via 10.9.0.1")
        self.between = self.wire(self.left, "wire0")


class SitesWithNat(Sites):
    """The same, with a router between that hides the left gateway behind its own address: what it
    masquerades comes from 10.9.0.9. The wire is on the right gateway's side.

        ┌─ left ─────┐      ┌─ router ─────────────────────┐      ┌─ right ────┐
        │      wire0 ┼──────┼ inside                outside ┼──────┼ wire0      │
        └────────────┘      └──────────────────────────────┘  ▲   └────────────┘
              192.168.9.2    192.168.9.1          10.9.0.9   wire   10.9.0.2
    """

    names = "nat-"

    def _join(self):
        self.router = self.namespace("router")
        veth(self.left, "wire0", self.router, "inside")
        veth(self.router, "outside", self.right, "wire0")
        self.left.address("wire0", "192.168.9.2/24")
        self.router.address("inside", "192.168.9.1/24")
        self.router.address("outside", "10.9.0.9/24")
        self.right.address("wire0", "10.9.0.2/24")
        self.left.ip("route add default via 192.168.9.1")
        self.router.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.between = self.wire(self.right, "wire0")
        self.masquerade("20000-20999")

    def masquerade(self, ports):
        """The left gateway's packets come from these ports from now on, also those of flows that
        were there before: Linux forgets them with the address."""
        rules = f"""flush ruleset
        table ip nat {{
            chain out {{
                type nat hook postrouting priority srcnat
                oifname "outside" meta l4proto udp masquerade to :{ports}
            }}
        }}"""
        self.router.run("nft", rules)
        self.router.ip("address delete 10.9.0.9/24 dev outside")
        self.router.ip("address add 10.9.0.9/24 dev outside")


class GatewaysBehindRouter(Hosts):
    """Two gateways and a router between them, whose far link takes less than its near one: senders
    on the left learn that from the router alone.

        ┌─ left ─────┐      ┌─ narrow-router ──────────┐      ┌─ right ────┐
        │      wire0 ┼──────┼ near                 far ┼──────┼ wire0      │
        └────────────┘  ▲   └──────────────────────────┘      └────────────┘
              10.9.0.1 wire  10.9.0.254       10.8.0.254       10.8.0.2
    """

    FAR = Side(outer={4: "10.8.0.2", 6: "fd08::2"}, inner=THERE.inner, spi=THERE.spi)

    def _build(self, mtu):
        self.left, self.right = self.namespace("narrow-left"), self.namespace("narrow-right")
        self.router = router = self.namespace("narrow-router")
        veth(self.left, "wire0", router, "near")
        veth(router, "far", self.right, "wire0")
        router.address("near", "10.9.0.254/24", "fd09::fe/64")
        router.address("far", "10.8.0.254/24", "fd08::fe/64")
        router.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        for namespace, side, gateway in ((self.left, HERE, "9"), (self.right, self.FAR, "8")):
            place(namespace, "wire0", side)
            namespace.ip(f"route add default via 10.{gateway}.0.254")
            namespace.ip(f"-6 route add default via fd0{gateway}::fe")
            self.echo(namespace)
        router.ip(f"link set far mtu {mtu}")
        self.right.ip(f"link set wire0 mtu {mtu}")
        self.between = self.wire(self.left, "wire0")
