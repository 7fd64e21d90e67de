// States: age, what they carried, and how near they are to their limits.

import { bar } from "../chart.js";
import { Items, element, mark, placeholder, row, say, table } from "../dom.js";
import { bytes, count, end, left, percent, span, things } from "../format.js";
import { Picker } from "../picker.js";

const TITLES = ["SPI", "Direction", "Ends", "State", "#Age", "#Carried", "#Numbers used", "Rekey", "Expires"];
/** Rows at the most. */
const ROWS = 200;

/** The view. */
export class States {
  title = "States";
  #picker;
  #items;
  #note = element("p", { class: "quiet" });
  #nothing = placeholder("No states.");

  constructor({ query }) {
    this.#picker = new Picker(query);
    const shown = table("States", TITLES);
    const body = element("tbody", { role: "rowgroup" });
    shown.append(body);
    this.#items = new Items(body, { key: ({ spi, source, destination }) => `${spi} ${source} ${destination}`, make: makeState, update: showState });
    this.element = element("section", { "aria-labelledby": "view-title" }, this.#picker.element, this.#note, shown, this.#nothing);
  }

  show({ status }) {
    this.#picker.show(status);
    const unmatched = status.unmatched_states.map((state) => ({ ...state, isUnmatched: true }));
    const states = [...unmatched, ...status.tunnels.flatMap((tunnel) => tunnel.states)];
    this.#items.show(states.slice(0, ROWS));
    const shown = Math.min(states.length, ROWS);
    const rest = shown < status.totals.states ? ` Shown are ${count(shown)}, of the tunnels chosen above.` : "";
    const fits = status.unmatched_states_total > 0 ? ` ${things(status.unmatched_states_total, "state fits", "states fit")} no policy.` : "";
    say(this.#note, `The gateway has ${things(status.totals.states, "state", "states")}.${rest}${fits}`);
    mark(this.#nothing, "hidden", states.length > 0 ? "" : null);
  }
}

function makeState() {
  const made = row(TITLES);
  made.children[0].classList.add("mono");
  made.children[3].append(element("span", { class: "badge" }));
  made.bars = [bar(), bar()];
  made.bars.forEach(({ element: drawing }, place) => made.children[7 + place].append(drawing));
  return made;
}

function showState(made, state) {
  const [spi, direction, ends, lifecycle, age, carried, numbers] = made.children;
  say(spi, state.spi);
  say(direction, state.isUnmatched ? "fits no policy" : state.direction ?? "–");
  say(ends, `${end(state.source)} → ${end(state.destination)}, reqid ${state.reqid}`);
  say(lifecycle.firstChild, state.lifecycle);
  mark(made, "data-health", state.isUnmatched ? "one-way" : { valid: "up", dying: "one-way", expired: "down" }[state.lifecycle]);
  say(age, span(state.added_seconds_ago));
  say(carried, bytes(state.traffic.bytes));
  say(numbers, state.sequence_ratio > 0 && state.sequence_ratio < 0.001 ? "< 0.1 %" : percent(state.sequence_ratio));
  [state.rekey, state.expiry].forEach((limit, place) => made.bars[place].show(left(limit), limit?.used_ratio ?? null));
}
