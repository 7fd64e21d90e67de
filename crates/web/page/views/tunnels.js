// Tunnels and their health, and what passes.

import { nextStep } from "../advice.js";
import { Chart } from "../chart.js";
import { Items, element, mark, placeholder, row, say, table } from "../dom.js";
import { bits, bytes, count, end, left, short, span, things } from "../format.js";
import { Picker } from "../picker.js";
import { total, tunnelKey } from "../rates.js";

const TITLES = ["Health", "Peer", "Protects", "#In", "#Out", "#Drops", "Expires"];
const HEALTHS = [["down", "down"], ["one_way", "one-way"], ["idle", "idle"], ["up", "up"]];
/** Samples of the charts. */
const POINTS = 150;

/** The view. */
export class Tunnels {
  title = "Tunnels";
  #tiles = new Map();
  #traffic = new Chart("Throughput", [{ name: "in", tone: "first" }, { name: "out", tone: "second" }], { points: POINTS, write: bits });
  #drops = new Chart("Drops", [{ name: "dropped", tone: "bad" }], { points: POINTS, write: (rate) => `${short(rate)}/s` });
  #nothing = placeholder("No tunnels: the gateway has no policy with a template that is asked for here.");
  #notices = element("ul", { class: "notices" });
  #picker;
  #items;

  constructor({ query }) {
    this.#picker = new Picker(query);
    const tiles = HEALTHS.map(([key, name]) => {
      const number = element("strong", {}, "–");
      this.#tiles.set(key, number);
      return element("li", { class: "tile", "data-health": name }, number, element("span", {}, name));
    });
    const shown = table("Tunnels", TITLES);
    this.#items = new Items(shown, { key: tunnelKey, make: makeTunnel, update: showTunnel });
    this.element = element("section", { "aria-labelledby": "view-title" },
      element("ul", { class: "tiles", "aria-label": "Tunnels by health" }, ...tiles),
      this.#notices,
      element("div", { class: "charts" }, this.#traffic.element, this.#drops.element),
      this.#picker.element, shown, this.#nothing);
  }

  /** Charts go on while another view is shown. */
  note(sample) {
    this.#traffic.add([sample.rates.received, sample.rates.sent]);
    this.#drops.add([sample.rates.dropped]);
  }

  show(sample) {
    const { status } = sample;
    for (const [key, number] of this.#tiles) say(number, count(status.totals[key]));
    this.#notices.replaceChildren(...status.notices.map((notice) => element("li", {}, notice)));
    this.#picker.show(status);
    this.#items.show(status.tunnels.map((tunnel) => ({ ...tunnel, rates: sample.tunnel(tunnel) })));
    mark(this.#nothing, "hidden", status.tunnels.length > 0 ? "" : null);
  }
}

function makeTunnel() {
  const cells = row(TITLES);
  const [health, peer] = cells.children;
  health.append(element("span", { class: "badge" }));
  const details = element("tr", { role: "row", class: "details", hidden: true },
    element("td", { role: "cell", colspan: TITLES.length }, element("dl", {})));
  const button = element("button", {
    type: "button", class: "open", "aria-expanded": "false",
    click: () => {
      const isOpen = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!isOpen));
      details.hidden = isOpen;
    },
  });
  peer.append(button);
  return element("tbody", { role: "rowgroup" }, cells, details);
}

function showTunnel(made, tunnel) {
  const [cells, details] = made.children;
  const [health, peer, nets, received, sent, drops, expiry] = cells.children;
  mark(made, "data-health", tunnel.health);
  say(health.firstChild, tunnel.health);
  say(peer.firstChild, end(tunnel.remote));
  const first = tunnel.nets[0];
  const more = tunnel.nets_total > 1 ? ` and ${count(tunnel.nets_total - 1)} more` : "";
  say(nets, first ? `${first.local} ↔ ${first.remote}${more}` : "–");
  say(received, bits(tunnel.rates?.received?.bytes));
  say(sent, bits(tunnel.rates?.sent?.bytes));
  const dropped = total(tunnel.drops);
  say(drops, dropped === 0 ? "0" : short(dropped));
  mark(drops, "data-tone", dropped > 0 ? "warn" : null);
  say(expiry, left(tunnel.expiry ?? tunnel.rekey));
  showDetails(details.querySelector("dl"), tunnel);
}

function showDetails(list, tunnel) {
  const lines = new Map();
  if (tunnel.explanation) lines.set("Why", tunnel.explanation);
  const next = nextStep(tunnel);
  if (next) lines.set("Next", next);
  lines.set("Ends", `${end(tunnel.local)} ↔ ${end(tunnel.remote)}, ${tunnel.mode} mode, reqid ${tunnel.reqid}${tunnel.if_id ? `, if_id ${tunnel.if_id}` : ""}`);
  if (tunnel.nets_total > 1) lines.set("Protects", tunnel.nets.map(({ local, remote, traffic }) => `${local} ↔ ${remote}${traffic ? ` proto ${traffic}` : ""}`).join(", "));
  if (tunnel.cipher) lines.set("Cipher", tunnel.cipher);
  if (tunnel.encapsulation) lines.set("UDP", `to port ${tunnel.encapsulation.destination_port}`);
  if (tunnel.device) lines.set("Device", tunnel.device);
  lines.set("Received", carried(tunnel.received));
  lines.set("Sent", carried(tunnel.sent));
  lines.set("States", tunnel.states.map(({ spi, direction }) => `${spi} ${direction ?? ""}`.trim()).join(", ") || "none");
  if (tunnel.rekey) lines.set("Rekey", left(tunnel.rekey));
  const reasons = Object.entries(tunnel.drops);
  if (reasons.length > 0) lines.set("Dropped", reasons.map(([reason, number]) => `${reason} ${count(number)}`).join(", "));
  if ([...list.querySelectorAll("dt")].map((term) => term.textContent).join() !== [...lines.keys()].join()) {
    list.replaceChildren(...[...lines.keys()].flatMap((term) => [element("dt", {}, term), element("dd", {})]));
  }
  [...lines.values()].forEach((text, place) => say(list.children[2 * place + 1], text));
}

function carried({ packets, bytes: size, last_seconds_ago: ago }) {
  if (packets === 0) return "nothing";
  return `${things(packets, "packet", "packets")} (${bytes(size)}), the last ${span(ago ?? 0)} ago`;
}
