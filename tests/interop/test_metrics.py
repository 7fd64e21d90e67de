"""`/metrics` of `uxfrm web`: Prometheus scrapes it, its figures move, and alerts fire; a page stays
small however many states there are."""

import json
import re
import socket
import statistics
import subprocess

import pytest

import patience
import prerequisite
import topology
from association import GCM_128, Association
from gateway import Gateway
from scraper import EXAMPLES, READABLE, REPOSITORY, Prometheus, Web, series
from test_lifecycle import network  # noqa: F401: a fixture
from topology import HERE, THERE

PROTECTED = Association(GCM_128, "tunnel", 4, 4, extra="replay-window 32 limit time-soft 3000 limit time-hard 3600")
ABSENT = "10.9.0.7"
STATELESS = f"xfrm policy add src 10.1.0.0/16 dst 10.7.0.0/16 dir out tmpl src {HERE.outer[4]} dst {ABSENT} proto esp reqid 9 mode tunnel"


@pytest.fixture
def pair(uxfrm, network):  # noqa: F811
    prerequisite.programs(prometheus="prometheus", promtool="prometheus")
    gateways = [Gateway(uxfrm, side) for side in (network.left, network.right)]
    left, right = gateways
    left.start([*PROTECTED.lines(HERE, THERE), STATELESS], more=READABLE)
    right.start(PROTECTED.lines(THERE, HERE), more=READABLE)
    yield gateways
    for gateway in gateways:
        gateway.close()


def send_towards(namespace, destination):
    with namespace.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HERE.inner[4], 0))
        sender.sendto(b"?", (destination, 9))


def test_prometheus_scrapes_and_alerts_fire(uxfrm, network, pair):  # noqa: F811
    left, _ = pair
    with Web(uxfrm, network.left, left.directory) as web, Prometheus(network.left, web.token_file) as prometheus:
        sent = f'uxfrm_tunnel_sent_packets_total{{peer="{THERE.outer[4]}"}}'
        patience.wait_for(lambda: prometheus.value('up{job="uxfrm"}') == 1, lambda: f"{web.said()}\n{prometheus.said()}")
        network.left.ping(HERE.inner[4], THERE.inner[4], count=3)
        patience.wait_for(lambda: prometheus.value(sent) == 3)
        network.left.ping(HERE.inner[4], THERE.inner[4], count=2)
        patience.wait_for(lambda: prometheus.value(sent) == 5, "figures that move")
        assert prometheus.value(f'uxfrm_tunnel_up{{peer="{THERE.outer[4]}"}}') == 1
        assert prometheus.value(f'uxfrm_tunnel_up{{peer="{ABSENT}"}}') == 0
        assert prometheus.value('uxfrm_tunnels{health="down"}') == 1
        [alert] = patience.wait_for(lambda: prometheus.firing("UxfrmTunnelDown"), "an alert for the tunnel that is down")
        assert alert["labels"]["peer"] == ABSENT and f"`uxfrm status {ABSENT}`" in alert["annotations"]["description"]
        send_towards(network.left, "10.7.0.1")
        patience.wait_for(lambda: prometheus.value('uxfrm_drops_total{reason="out_no_state"}') == 1)
        assert prometheus.value("node_xfrm_out_no_states_packets_total") == 1
        patience.wait_for(lambda: prometheus.value(f'uxfrm_tunnel_drops_total{{peer="{ABSENT}", reason="out_no_state"}}') == 1)
        left.stop()
        patience.wait_for(lambda: prometheus.value("uxfrm_up") == 0, "a gateway that does not answer")
        patience.wait_for(lambda: prometheus.firing("UxfrmGatewayDown"), "an alert for it")


def test_both_forms_of_a_page(uxfrm, network, pair):  # noqa: F811
    left, _ = pair
    network.left.ping(HERE.inner[4], THERE.inner[4], count=3)
    send_towards(network.left, "10.7.0.1")
    with Web(uxfrm, network.left, left.directory) as web:
        patience.wait_for(lambda: "uxfrm_tunnel_drops_total" in series(web.page()[1])[1])
        headers, page = web.page()
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), checked
        values, counts = series(page)
        headers, other = web.page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert other.endswith("# EOF\n") and series(other)[1].keys() == counts.keys()
        told = left.namespace.run(str(left._binary), "stat", "-j")
        for line, count in json.loads(told).items():
            words = re.sub(r"(?<!^)([A-Z])", r"_\1", line.removeprefix("Xfrm")).lower()
            assert values[f"node_xfrm_{words}_packets_total"] == str(count), line
        documented = set(re.findall(r"(?m)^\| `([a-z0-9_]+)` \|", (REPOSITORY / "docs/metrics.md").read_text()))
        assert counts.keys() <= documented
        assert PROTECTED.secret_towards(THERE).hex()[:16] not in page


# What this gateway has none of: offload devices, links.
ELSEWHERE = {"uxfrm_device_drops_total", "uxfrm_link_drops_total", "uxfrm_device_info"}


def test_alerts_and_dashboard_use_what_a_page_has(uxfrm, network, pair):  # noqa: F811
    left, _ = pair
    network.left.ping(HERE.inner[4], THERE.inner[4], count=1)
    send_towards(network.left, "10.7.0.1")
    dashboard = json.loads((EXAMPLES / "grafana/uxfrm.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    expressions.append((EXAMPLES / "prometheus/uxfrm-alerts.yml").read_text())
    used = set(re.findall(r"\b(?:uxfrm|node_xfrm)_[a-z_]+", " ".join(expressions)))
    assert len(used) > 20
    with Web(uxfrm, network.left, left.directory) as web:
        patience.wait_for(lambda: used - ELSEWHERE <= series(web.page()[1])[1].keys(),
                          lambda: used - ELSEWHERE - series(web.page()[1])[1].keys())


def many_lines(tunnels):
    """So many tunnels of two states each."""
    for number in range(tunnels):
        peer = f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        inner = f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        for source, destination, spi in ((peer, "10.9.0.1", 2 * number + 0x10000), ("10.9.0.1", peer, 2 * number + 0x10001)):
            yield (f"xfrm state add src {source} dst {destination} proto esp spi {spi} reqid {number + 100} mode tunnel"
                   f" aead rfc4106(gcm(aes)) 0x{spi:040x} 128 limit time-hard 86400")
        for way, source, destination, ends in (("out", "10.1.0.1", inner, f"src 10.9.0.1 dst {peer}"), ("in", inner, "10.1.0.1", f"src {peer} dst 10.9.0.1")):
            yield f"xfrm policy add src {source} dst {destination} dir {way} tmpl {ends} proto esp reqid {number + 100} mode tunnel"


FEW, MANY, NAMED = 5, 50_000, 1000


@pytest.mark.alone
def test_a_page_of_a_hundred_thousand_states_is_small(uxfrm, capsys):
    """Times are printed, and none is asserted."""
    with topology.Hosts() as hosts:
        taken, pages = {}, {}
        for tunnels in (FEW, MANY):
            gateway = hosts.gateway(uxfrm, hosts.namespace(f"with-{tunnels}"))
            gateway.start(many_lines(tunnels), guard="off", more=READABLE)
            with Web(uxfrm, gateway.namespace, gateway.directory) as web:
                web.page()
                # Further apart than answers are shared.
                times = []
                for _ in range(7):
                    subprocess.run(["sleep", "0.5"], check=True)
                    seconds, pages[tunnels] = web.seconds()
                    times.append(seconds)
                taken[tunnels] = times
                short = web.page(query="?tunnels=10")[1]
            values, counts = series(pages[tunnels])
            named = min(tunnels, NAMED)
            assert counts["uxfrm_tunnel_up"] == named and counts["uxfrm_tunnel_health"] == 4 * named
            assert values["uxfrm_tunnels_omitted"] == str(tunnels - named)
            assert sum(int(values[f'uxfrm_tunnels{{health="{health}"}}']) for health in ("up", "idle", "one-way", "down")) == tunnels
            assert values["uxfrm_states"] == str(2 * tunnels)
            assert len(pages[tunnels]) < 32_000 + 6000 * named
            assert series(short)[1]["uxfrm_tunnel_up"] == min(tunnels, 10)
            gateway.stop()
        few, many = (statistics.median(taken[tunnels]) for tunnels in (FEW, MANY))
        with capsys.disabled():
            print(f"\n/metrics of {2 * MANY} states: {min(taken[MANY]) * 1000:.0f} to {max(taken[MANY]) * 1000:.0f} ms, {len(pages[MANY]) / 1e6:.1f} MB;"
                  f" of {2 * FEW}: {few * 1000:.1f} ms, {len(pages[FEW]) / 1e3:.0f} kB; ratio {many / few:.0f}")
