"""Two ends of an IKEv2 connection: a gateway and an unmodified charon each, and what they agree
on."""

import dataclasses
import time

import charon
import patience
from gateway import CONTROLLED
from namespace import Namespace

WAIT_SECONDS = patience.SECONDS
PROPOSAL, ESP_PROPOSAL = "aes128gcm16-prfsha256-ecp256", "aes128gcm16-ecp256"
SECRET = {"ike": {"secret": "swordfish"}}


@dataclasses.dataclass
class End:
    """One end: where it is, what is behind it, and, once started, what runs there."""

    namespace: Namespace
    address: str
    net: str
    gateway: object = None
    charon: object = None

    def start(self, hosts, binary, lines=()):
        """uxfrm with these lines, and charon under `uxfrm exec`; both end with `hosts`."""
        self.gateway = hosts.gateway(binary, self.namespace)
        self.gateway.start(lines, more=CONTROLLED)
        self._start_charon(hosts, charon.Charon(self.namespace, [str(binary), "exec", "--"]))

    def start_without_uxfrm(self, hosts):
        """charon with the data plane that it brings along."""
        self._start_charon(hosts, charon.Charon(self.namespace, plugins=charon.OWN_DATA_PLANE))

    def _start_charon(self, hosts, made):
        self.charon = made
        hosts.callback(made.close)
        made.start()

    def policies(self):
        return self.gateway.ip("xfrm policy")

    def states(self):
        return self.gateway.ip("xfrm state")

    def wait_for_no_states(self):
        self.wait_for_states(lambda states: states == "")

    def wait_for_states(self, are_right):
        """Until what `ip xfrm state` prints is right."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not are_right(states := self.states()):
            assert time.monotonic() < deadline, f"after {WAIT_SECONDS} s still:\n{states}"
            time.sleep(0.05)


def connection(here, there, child=None, **more):
    """The `swanctl.conf` of one end: IKEv2, a pre-shared key, one CHILD_SA `net` between what is
    behind the two."""
    net = {"local_ts": here.net, "remote_ts": there.net, "esp_proposals": ESP_PROPOSAL} | (child or {})
    ends = {
        "version": 2,
        "local_addrs": here.address,
        "remote_addrs": there.address,
        "proposals": PROPOSAL,
        "mobike": "no",
        "local": {"auth": "psk", "id": here.address},
        "remote": {"auth": "psk", "id": there.address},
    }
    return {"connections": {"to": ends | more | {"children": {"net": net}}}, "secrets": SECRET}


def connect(here, there, child=None, **more):
    """Loads the same connection at both ends, as each of them sees it."""
    here.charon.load(connection(here, there, child, **more))
    there.charon.load(connection(there, here, child, **more))
