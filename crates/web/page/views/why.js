// What a packet would meet: the form of `uxfrm why`, and its steps.

import { NoAnswer, ask } from "../api.js";
import { element, mark, withCode } from "../dom.js";

const PROTOCOLS = [["", "any"], ["6", "TCP"], ["17", "UDP"], ["1", "ICMP"], ["58", "ICMPv6"], ["132", "SCTP"]];
const WAYS = [["", "as it is"], ["out", "out"], ["in", "in"]];
const RESULTS = { passes: "passes", doubtful: "doubtful", fails: "fails" };
const OUTCOMES = {
  "leaves-plain": ["bad", "Leaves PLAIN"],
  "leaves-protected": ["good", "Leaves protected"],
  waits: ["warn", "Waits"],
  "comes-in": ["good", "Comes in"],
  dropped: ["bad", "Dropped"],
};

/** The view. */
export class Why {
  title = "Why";
  #answer = element("div", { class: "answer", "aria-live": "polite" });
  #form;
  #button = element("button", { class: "primary" }, "Explain");

  constructor() {
    const ports = { inputmode: "numeric", pattern: "[0-9]{1,5}", size: 5, autocomplete: "off" };
    const address = { required: true, size: 17, autocomplete: "off", spellcheck: "false" };
    this.#form = element("form", { class: "why card", submit: (event) => this.#submit(event) },
      field("From", element("input", { name: "source", placeholder: "10.1.0.1", ...address })),
      field("To", element("input", { name: "destination", placeholder: "10.2.0.1", ...address })),
      field("Protocol", choice("protocol", PROTOCOLS)),
      field("From port", element("input", { name: "source_port", ...ports })),
      field("To port", element("input", { name: "destination_port", ...ports })),
      field("Direction", choice("way", WAYS)),
      field("SPI, if it comes in ESP", element("input", { name: "spi", placeholder: "0x00001001", size: 10, pattern: "(0x)?[0-9a-fA-F]{1,10}", autocomplete: "off" })),
      field("Mark", element("input", { name: "mark", placeholder: "0x10", size: 5, pattern: "(0x)?[0-9a-fA-F]{1,10}", autocomplete: "off" })),
      this.#button);
    this.element = element("section", { "aria-labelledby": "view-title" },
      element("p", { class: "quiet" }, "Route, policy, state, size and way out of a packet, and what nearly fitted. Nothing is sent."),
      this.#form, this.#answer);
  }

  show() {}

  async #submit(event) {
    event.preventDefault();
    mark(this.#button, "disabled", "");
    try {
      const filled = [...new FormData(this.#form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== "");
      const explanation = await ask("why", Object.fromEntries(filled));
      this.#answer.replaceChildren(...explained(explanation));
    } catch (problem) {
      if (!(problem instanceof NoAnswer)) throw problem;
      this.#answer.replaceChildren(element("p", { class: "bad", role: "alert" }, problem.detail), element("p", { class: "quiet" }, problem.next ?? ""));
    } finally {
      mark(this.#button, "disabled", null);
    }
  }
}

function field(name, input) {
  return element("label", {}, element("span", {}, name), input);
}

function choice(name, options) {
  return element("select", { name }, ...options.map(([value, text]) => element("option", { value }, text)));
}

/** The steps as the text command has them. */
function explained({ flow, direction, outcome, verdict, steps, encapsulation, drop }) {
  const [tone, name] = OUTCOMES[outcome] ?? ["warn", outcome];
  const parts = [
    element("p", { class: "verdict", "data-tone": tone }, element("strong", {}, name), element("span", {}, ...withPlain(verdict))),
    element("p", { class: "quiet" }, element("span", { class: "mono" }, flow), `, direction ${direction}`),
    element("ol", { class: "steps" }, ...steps.map(step)),
  ];
  if (encapsulation) {
    const { source, destination, spis, udp_port: udp, path_mtu: path, inner_mtu: inner } = encapsulation;
    parts.push(element("p", {}, `ESP ${source} → ${destination}, SPI ${spis.join(", ")}${udp ? `, UDP port ${udp}` : ""}; packets of ${inner} bytes fit, as the path takes ${path}.`));
  }
  if (drop) {
    parts.push(element("dl", { class: "card" }, ...[["Reason", drop.reason], ["Cause", drop.cause], ["Next", drop.next]]
      .flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, ...withCode(text))])));
  }
  return parts;
}

function step({ stage, result, text, notes = [] }) {
  return element("li", { "data-result": result },
    element("span", { class: "stage" }, stage),
    element("div", {}, element("span", { class: "result" }, RESULTS[result] ?? result), element("span", {}, ...withPlain(text)),
      ...notes.map((note) => element("p", { class: "note" }, ...withPlain(note)))));
}

/** Text in which PLAIN is marked: it is what must not be overlooked. */
function withPlain(text) {
  return text.split(/(\bPLAIN\b)/).map((part) => (part === "PLAIN" ? element("strong", { class: "plain" }, part) : part));
}
