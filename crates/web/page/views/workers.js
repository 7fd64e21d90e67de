// Workers, their ports, offload devices, flow caches.

import { TextTable, element, mark, placeholder, say } from "../dom.js";
import { bits, count, percent, short } from "../format.js";
import { workerRates } from "../rates.js";

/** The view. */
export class Workers {
  title = "Workers";
  #older = placeholder("The gateway is of a release that does not tell what its workers do.");
  #workers = new TextTable("Workers", ["Worker", "#Busy", "#Out", "#Out packets/s", "#In", "#In packets/s", "#Batches/s", "#Cycles/packet", "#Drops/s", "#Waiting"], {
    key: ({ now }) => now.worker,
    cells: ({ now, rates }) => [
      String(now.worker), percent(rates?.busy), bits(rates?.sent.bytes), short(rates?.sent.packets), bits(rates?.received.bytes),
      short(rates?.received.packets), short(rates?.batches), short(rates?.cycles), short(rates?.dropped), count(now.waiting),
    ],
  });
  #ports = new TextTable("Ports", ["Port", "#Worker", "#Received/s", "#Batches/s", "#Sent packets/s", "#Sent", "#Refused"], {
    key: ({ worker, name }) => `${worker} ${name}`,
    cells: ({ worker, name, rate, refused }) => [
      name, String(worker), short(rate?.("received")), short(rate?.("batches")), short(rate?.("sent")), bits(rate?.("sent_bytes")), count(refused),
    ],
    tone: ({ rate }) => (rate?.("refused") > 0 ? "bad" : null),
  });
  #devices = new TextTable("Offload devices", ["Device", "#States in", "#States out", "#In packets", "#Out packets", "#Dropped"], {
    key: ({ name }) => name,
    cells: ({ name, states_in: input, states_out: output, inbound, outbound }) => [
      name, count(input), count(output), short(inbound.sent), short(outbound.sent), count(inbound.dropped + outbound.dropped),
    ],
  });
  #noDevices = placeholder("No offload devices.");
  #caches = new TextTable("Flow caches", ["Cache", "#Hits", "#Hit share", "#Misses", "#Stale", "#Passed by", "#Entries", "#Room"], {
    key: ({ worker, direction, family }) => `${worker} ${direction} ${family}`,
    cells: (cache) => {
      const all = cache.hits + cache.misses + cache.stale + cache.bypassed;
      return [
        `${cache.worker} ${cache.direction} ${cache.family}`, short(cache.hits), percent(all > 0 ? cache.hits / all : null), short(cache.misses),
        short(cache.stale), short(cache.bypassed), count(cache.entries), count(cache.room),
      ];
    },
  });
  #noCaches = placeholder("No flow cache was used yet.");
  #interfaces = element("p", { class: "quiet" });

  constructor() {
    this.element = element("section", { "aria-labelledby": "view-title" },
      this.#interfaces, this.#older, this.#workers.element,
      element("h3", {}, "Ports"), this.#ports.element,
      element("h3", {}, "Offload devices"), this.#devices.element, this.#noDevices,
      element("h3", {}, "Flow caches"), this.#caches.element, this.#noCaches);
  }

  show(sample) {
    const { workers, counters, status } = sample;
    const by = status.gateway.interfaces.length > 0 ? `, by ${status.gateway.interfaces.join(" and ")}` : "";
    const udp = status.gateway.udp_ports.length > 0 ? `, ESP in UDP at ${status.gateway.udp_ports.join(", ")}` : "";
    say(this.#interfaces, `TUN ${status.gateway.tun}${by}${udp}. Cycles per packet are the processor time of a worker’s thread by its packets.`);
    mark(this.#older, "hidden", workers ? "" : null);
    const rows = (workers?.workers ?? []).map((now) => {
      const before = sample.before?.workers?.workers.find(({ worker }) => worker === now.worker);
      return { now, before, rates: workerRates(before, now) };
    });
    this.#workers.show(rows);
    this.#ports.show(rows.flatMap(portsOf));
    const devices = workers?.devices ?? [];
    this.#devices.show(devices);
    mark(this.#noDevices, "hidden", devices.length > 0 ? "" : null);
    this.#caches.show(counters.caches);
    mark(this.#noCaches, "hidden", counters.caches.length > 0 ? "" : null);
  }
}

function portsOf({ now, before, rates }) {
  return now.ports.map((port, place) => {
    const was = before?.ports[place];
    const rate = was && rates ? (name) => (port[name] - was[name]) / rates.seconds : null;
    return { ...port, worker: now.worker, rate };
  });
}
