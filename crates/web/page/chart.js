// Lines over time, as a drawing.

import { drawn, element, mark, say } from "./dom.js";

const [WIDTH, HEIGHT] = [600, 100];
/** Values that fill the width at first. */
const FEW = 30;

/** A chart with some lines: `{ name, tone }` each. `write` writes a value. */
export class Chart {
  #lines;
  #most;
  #drawing;
  #title;
  #write;
  #values = [];
  #points;

  constructor(title, lines, { points, write }) {
    [this.#title, this.#write, this.#points] = [title, write, points];
    this.#lines = lines.map(({ name, tone }) => ({
      name,
      line: drawn("polyline", { class: `line ${tone}`, points: "" }),
      area: drawn("polygon", { class: `area ${tone}`, points: "" }),
      value: element("span", { class: "value" }, "–"),
      tone,
    }));
    this.#drawing = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    for (const share of [0.25, 0.5, 0.75]) {
      this.#drawing.append(drawn("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share }));
    }
    for (const { line, area } of this.#lines) this.#drawing.append(area, line);
    this.#most = element("span", { class: "quiet" }, "");
    const legend = this.#lines.map(({ name, tone, value }) => element("li", {}, element("span", { class: `key ${tone}`, "aria-hidden": "true" }), `${name} `, value));
    this.element = element("figure", { class: "chart card" },
      element("figcaption", {}, element("strong", {}, title), element("ul", { class: "legend" }, ...legend)),
      this.#drawing, element("div", { class: "axis" }, this.#most, element("span", { class: "quiet" }, "now")));
  }

  /** Adds a value for each line; `null` where one is not known. */
  add(values) {
    // Nothing is known before the second sample.
    if (values.every((value) => value === null)) return;
    this.#values.push(values);
    if (this.#values.length > this.#points) this.#values.shift();
    const most = Math.max(...this.#values.flat().map((value) => value ?? 0));
    const top = most > 0 ? most * 1.1 : 1;
    // A page that was just opened has its few values on more of the width.
    const width = WIDTH / (Math.max(FEW, this.#values.length) - 1);
    this.#lines.forEach((line, place) => {
      const points = this.#values.map((all, at) => {
        const x = WIDTH - (this.#values.length - 1 - at) * width;
        return `${x.toFixed(1)},${(HEIGHT - ((all[place] ?? 0) / top) * HEIGHT).toFixed(1)}`;
      });
      const first = points[0].split(",")[0];
      mark(line.line, "points", points.join(" "));
      mark(line.area, "points", `${first},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
      say(line.value, this.#write(values[place]));
    });
    say(this.#most, most > 0 ? `at most ${this.#write(most)}` : "");
    const now = this.#lines.map(({ name }, place) => `${name} ${this.#write(values[place])}`);
    mark(this.#drawing, "aria-label", `${this.#title}: now ${now.join(", ")}, at most ${this.#write(most)}`);
  }
}

/** A bar that is filled to a share of one; its text says what that is. */
export function bar() {
  const fill = drawn("rect", { class: "fill", x: 0, y: 0, height: 6, width: 0 });
  const drawing = drawn("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "rest", x: 0, y: 0, height: 6, width: 100 }), fill);
  const text = element("span", {}, "");
  const made = element("span", { class: "limit" }, text, drawing);
  return {
    element: made,
    show(words, share) {
      say(text, words);
      mark(made, "data-bare", share === null ? "" : null);
      mark(made, "data-near", share !== null && share >= 0.9 ? "" : null);
      mark(fill, "width", ((share ?? 0) * 100).toFixed(1));
    },
  };
}
