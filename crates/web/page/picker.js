// Which tunnels are asked for: by address, the worst first or all by name, page by page.

import { element, mark, say } from "./dom.js";
import { count, things } from "./format.js";

/** Tunnels of a page: so a gateway with very many is shown as fast as one with few. */
const PAGE = 100;

/** What is asked, for all pickers. */
export class TunnelQuery extends EventTarget {
  peer = "";
  /** By name, behind this cursor; `null` for the worst first. */
  after = null;
  /** What is wrong with the address that was given last. */
  error = "";
  #answered = "";

  /** As parameters of `/api/v1/status`. */
  parameters() {
    const cursor = this.after === null ? {} : { after: this.after };
    const query = new URLSearchParams({ limit: PAGE, ...(this.peer && { peer: this.peer }), ...cursor });
    return Object.fromEntries(query);
  }

  set(change) {
    Object.assign(this, { error: "" }, change);
    this.dispatchEvent(new Event("change"));
  }

  /** Tunnels of this peer were told. */
  accept(peer) {
    this.#answered = peer;
  }

  /** This peer is no address: what was answered before is asked again. `false` if it is that one. */
  refuse(peer, error) {
    if (peer === this.#answered) return false;
    if (peer === this.peer) {
      [this.peer, this.error] = [this.#answered, error];
      this.dispatchEvent(new Event("refuse"));
    }
    return true;
  }
}

/** Pickers that were made, for names of their parts. */
let pickers = 0;

/** A form that changes it. */
export class Picker {
  #query;
  #peer = element("input", { id: null, type: "search", name: "peer", placeholder: "192.0.2.7 or 10.3.0.0/16", autocomplete: "off", spellcheck: "false", size: 22 });
  #order = element("select", { name: "order" }, element("option", { value: "worst" }, "worst first"), element("option", { value: "name" }, "by name"));
  #next = element("button", { type: "button", hidden: true, click: () => this.#turn() }, "Next page");
  #range = element("span", { class: "quiet" }, "");
  #error = element("span", { class: "bad", id: `peer-error-${(pickers += 1)}`, role: "alert" });
  #cursor = null;

  constructor(query) {
    this.#query = query;
    mark(this.#peer, "aria-describedby", this.#error.id);
    this.element = element("form", { class: "picker", submit: (event) => this.#submit(event) },
      element("label", {}, "Peer or net ", this.#peer),
      element("button", {}, "Filter"),
      element("label", {}, "Order ", this.#order),
      this.#error, this.#next, this.#range);
    this.#order.addEventListener("change", () => this.#submit());
    // What is emptied by the field's own button.
    this.#peer.addEventListener("search", () => this.#submit());
    query.addEventListener("change", () => this.#reflect());
    query.addEventListener("refuse", () => this.#complain());
  }

  show(status) {
    this.#cursor = status.next ?? null;
    mark(this.#next, "hidden", this.#cursor === null && !this.#query.after ? "" : null);
    say(this.#next, this.#cursor === null ? "First page" : "Next page");
    const [shown, all] = [status.tunnels.length, status.totals.tunnels];
    say(this.#range, shown < all ? `${count(shown)} of ${things(all, "tunnel", "tunnels")}` : things(all, "tunnel", "tunnels"));
  }

  #submit(event) {
    event?.preventDefault();
    const peer = this.#peer.value.trim();
    const after = this.#order.value === "name" ? "" : null;
    if (peer === this.#query.peer && after === this.#query.after && !this.#query.error) return;
    this.#query.set({ peer, after });
  }

  #turn() {
    this.#query.set({ after: this.#cursor ?? "" });
  }

  #reflect() {
    this.#peer.value = this.#query.peer;
    this.#order.value = this.#query.after === null ? "worst" : "name";
    this.#complain();
  }

  /** Says what is wrong with the address, which stays to be mended. */
  #complain() {
    say(this.#error, this.#query.error);
    mark(this.#peer, "aria-invalid", this.#query.error ? "true" : null);
  }
}
