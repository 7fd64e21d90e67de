// Dropped packets: by reason with cause and next step, samples of them, and whose they were.

import { ask } from "../api.js";
import { Items, TextTable, element, mark, placeholder, row, say, sayWithCode, table } from "../dom.js";
import { clock, count, flow, short } from "../format.js";

const TITLES = ["Reason", "#Now", "#Total", "Usual cause", "Next step"];
/** Rows of samples and of tallies. */
const ROWS = 100;

/** The view. */
export class Drops {
  title = "Drops";
  #reasons;
  #reason = null;
  #asked = false;
  #nothing = placeholder("No packet was dropped since the gateway started.");
  #noSamples = placeholder("No record of such a packet is left: of many alike only some are kept.");
  #heading = element("h3", {}, "Latest packets");
  #all = element("button", { type: "button", hidden: true, click: () => this.#choose(null) }, "Show all reasons");
  #samples = new TextTable("Latest dropped packets", ["Time", "Reason", "Packet", "Whose", "#Packets"], {
    key: (record) => record.number, cells: sampleCells,
  });
  #scope = element("select", {}, ...[["sa", "state"], ["policy", "policy"], ["device", "offload device"]].map(([value, name]) => element("option", { value }, name)));
  #tallies = new TextTable("Dropped packets by whose they were", ["Whose", "Reason", "#Packets"], {
    key: (tally) => `${whose(tally)} ${tally.reason}`, cells: (tally) => [whose(tally), tally.reason, count(tally.packets)],
  });
  #noTallies = placeholder("None of these.");
  #advice = new Map();

  constructor() {
    const shown = table("Drops by reason", TITLES);
    const body = element("tbody", { role: "rowgroup" });
    shown.append(body);
    this.#reasons = new Items(body, {
      key: ({ reason }) => reason,
      make: ({ reason }) => {
        const made = row(TITLES);
        made.children[0].append(element("button", { type: "button", class: "link mono", click: () => this.#choose(reason) }, reason));
        return made;
      },
      update: showReason,
    });
    this.#scope.addEventListener("change", () => { this.#asked = false; this.showTallies(); });
    this.element = element("section", { "aria-labelledby": "view-title" }, shown, this.#nothing,
      element("div", { class: "heading" }, this.#heading, this.#all), this.#samples.element, this.#noSamples,
      element("div", { class: "heading" }, element("h3", {}, "Whose packets"), element("label", {}, "by ", this.#scope)),
      this.#tallies.element, this.#noTallies);
  }

  show(sample) {
    for (const advice of sample.drops.advice) this.#advice.set(advice.reason, advice);
    const reasons = Object.entries(sample.counters.reasons).filter(([, number]) => number > 0);
    const rows = reasons.map(([reason, number]) => ({ reason, number, rate: sample.reason(reason), advice: this.#advice.get(reason) }));
    rows.sort((one, other) => (other.rate ?? 0) - (one.rate ?? 0) || other.number - one.number);
    this.#reasons.show(rows);
    mark(this.#nothing, "hidden", rows.length > 0 ? "" : null);
    this.#records = sample.drops.records;
    this.#showSamples();
    this.showTallies();
  }

  #records = [];

  #choose(reason) {
    this.#reason = reason;
    say(this.#heading, reason ? `Latest packets: ${reason}` : "Latest packets");
    mark(this.#all, "hidden", reason ? null : "");
    this.#showSamples();
    this.#heading.scrollIntoView({ block: "nearest" });
  }

  #showSamples() {
    const wanted = this.#records.filter(({ reason }) => !this.#reason || reason === this.#reason);
    const latest = wanted.slice(-ROWS).reverse();
    this.#samples.show(latest);
    mark(this.#noSamples, "hidden", latest.length > 0 ? "" : null);
  }

  /** Asks whose they were; one question at a time. */
  async showTallies() {
    if (this.#asked) return;
    this.#asked = true;
    try {
      const { tallies } = await ask("drop-tallies", { by: this.#scope.value });
      this.#tallies.show(tallies.slice(0, ROWS));
      mark(this.#noTallies, "hidden", tallies.length > 0 ? "" : null);
    } catch {
      // The banner says that the gateway does not answer.
    }
    this.#asked = false;
  }
}

function showReason(made, { number, rate, advice }) {
  const [, now, all, cause, next] = made.children;
  say(now, `${short(rate)}/s`);
  mark(now, "data-tone", rate > 0 ? "bad" : null);
  say(all, count(number));
  sayWithCode(cause, advice?.cause ?? "–");
  sayWithCode(next, advice?.next ?? "`uxfrm drops`, and docs/drop-reasons.md");
}

function sampleCells(record) {
  const parts = [];
  if (record.esp) {
    const { spi, source, destination, sequence } = record.esp;
    parts.push(`ESP ${spi} ${source} → ${destination}${sequence !== undefined ? ` seq ${sequence}` : ""}`);
  }
  if (record.flow) parts.push(flow(record.flow));
  if (record.length !== undefined) parts.push(`${count(record.length)} B`);
  return [clock(record.at_ms), record.reason, parts.join(", ") || "–", whose(record), count(record.packets)];
}

function whose({ state, policy, device }) {
  const parts = [];
  if (state) parts.push(`state ${state.spi} → ${state.destination} reqid ${state.reqid}`);
  if (policy !== undefined) parts.push(`policy ${policy}`);
  if (device) parts.push(`device ${device}`);
  return parts.join(", ") || "–";
}
