// What happens, as it happens: drops, tunnels whose health changes, gateways that come and go.

import { element, mark, placeholder } from "../dom.js";
import { clock, flow } from "../format.js";

/** Lines that are kept. */
const LINES = 200;

/** The view. */
export class Events {
  title = "Events";
  #list = element("ol", { class: "events", role: "log", "aria-label": "Events", "aria-live": "off", tabindex: "0" });
  #nothing = placeholder("Nothing has happened since this page was opened.");
  #isPaused = false;
  #held = [];
  #pause = element("button", { type: "button", "aria-pressed": "false", click: () => this.#toggle() }, "Pause");
  #kinds = element("select", {}, ...[["", "all"], ["drop", "drops"], ["tunnel", "tunnels"], ["gateway", "gateway"]].map(([value, name]) => element("option", { value }, name)));
  #state = element("span", { class: "quiet" }, "");

  constructor() {
    mark(this.#nothing, "hidden", null);
    this.#kinds.addEventListener("change", () => mark(this.#list, "data-only", this.#kinds.value || null));
    this.element = element("section", { "aria-labelledby": "view-title" },
      element("div", { class: "picker" }, element("label", {}, "Show ", this.#kinds), this.#pause,
        element("button", { type: "button", click: () => this.#clear() }, "Clear"), this.#state),
      this.#list, this.#nothing);
  }

  show() {}

  /** Says whether events arrive. */
  connected(text) {
    this.#state.textContent = text;
  }

  /** Adds a line. */
  add(kind, tone, text, at = Date.now()) {
    const line = element("li", { "data-kind": kind, "data-tone": tone },
      element("time", { datetime: new Date(at).toISOString() }, clock(at)), element("span", { class: "kind" }, kind), element("span", {}, text));
    if (this.#isPaused) {
      this.#held.push(line);
      this.#held.splice(0, this.#held.length - LINES);
      this.#state.textContent = `paused, ${this.#held.length} new`;
      return;
    }
    this.#put(line);
  }

  /** A line about a dropped packet. */
  addDrop({ reason, packets, esp, flow: inner, at_ms: at }) {
    const parts = [reason];
    if (esp) parts.push(`ESP ${esp.spi} ${esp.source} → ${esp.destination}`);
    if (inner) parts.push(flow(inner));
    if (packets > 1) parts.push(`stands for ${packets} packets`);
    this.add("drop", "warn", parts.join(", "), at);
  }

  #put(line) {
    this.#list.prepend(line);
    while (this.#list.children.length > LINES) this.#list.lastElementChild.remove();
    mark(this.#nothing, "hidden", "");
  }

  #toggle() {
    this.#isPaused = !this.#isPaused;
    mark(this.#pause, "aria-pressed", String(this.#isPaused));
    this.#pause.textContent = this.#isPaused ? "Go on" : "Pause";
    if (!this.#isPaused) {
      this.#held.forEach((line) => this.#put(line));
      [this.#held, this.#state.textContent] = [[], ""];
    }
  }

  #clear() {
    this.#list.replaceChildren();
    this.#held = [];
    mark(this.#nothing, "hidden", null);
  }
}
