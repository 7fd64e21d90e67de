// Elements, and lists of them that are kept from one sample to the next.
//
// Text comes from the network: it is put in as text nodes and attribute values alone.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Attributes that are functions are listeners of the event of that name. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets text, if it is another: so a selection stays where nothing has changed. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The same for text in which commands stand between backticks. */
export function sayWithCode(node, text) {
  if (node.textContent === text.replaceAll("`", "")) return;
  // One element, as a cell may lay out its children.
  node.replaceChildren(element("span", {}, ...withCode(text)));
}

/** Text and commands, of text with backticks. */
export function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 === 1 ? element("code", {}, part) : part));
}

/** Sets an attribute, if it is another; without a value it goes. */
export function mark(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/**
 * Has a parent show these items, an element each: those that were there before are kept, with their
 * focus and what is open in them. `key` tells items apart, `make` makes an element, `update` shows
 * an item in it.
 */
export class Items {
  #parent;
  #known = new Map();
  #key;
  #make;
  #update;

  constructor(parent, { key, make, update }) {
    this.#parent = parent;
    [this.#key, this.#make, this.#update] = [key, make, update];
  }

  show(items) {
    const left = new Map(this.#known);
    this.#known = new Map();
    let place = this.#parent.querySelector(":scope > [data-items]")?.nextElementSibling ?? firstItem(this.#parent);
    for (const item of items) {
      const key = this.#key(item);
      if (this.#known.has(key)) continue;
      const made = left.get(key) ?? this.#make(item);
      left.delete(key);
      this.#known.set(key, made);
      this.#update(made, item);
      if (made === place) place = place.nextElementSibling;
      else this.#parent.insertBefore(made, place);
    }
    for (const gone of left.values()) gone.remove();
  }
}

/** The first child behind a table's caption and head. */
function firstItem(parent) {
  let child = parent.firstElementChild;
  while (child && /^(CAPTION|THEAD|COLGROUP)$/.test(child.tagName)) child = child.nextElementSibling;
  return child;
}

/** A table's head from its titles; those of numbers begin with `#`. */
export function head(titles) {
  const cells = titles.map((title) => {
    const isNumber = title.startsWith("#");
    return element("th", { scope: "col", role: "columnheader", class: isNumber ? "number" : null }, isNumber ? title.slice(1) : title);
  });
  return element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...cells));
}

/**
 * A table that becomes a list of cards on narrow screens. Roles are said, as a table that is laid out
 * otherwise loses them.
 */
export function table(caption, titles) {
  return element("table", { class: "cards", role: "table" }, element("caption", { class: "hidden-text" }, caption), head(titles));
}

/** A row of so many cells, which on narrow screens bear the titles of their columns. */
export function row(titles) {
  const cells = titles.map((title) => {
    const isNumber = title.startsWith("#");
    return element("td", { role: "cell", class: isNumber ? "number" : null, "data-title": isNumber ? title.slice(1) : title });
  });
  return element("tr", { role: "row" }, ...cells);
}

/** A table whose rows are only text: an item's cells are `cells(item)`. */
export class TextTable {
  constructor(caption, titles, { key, cells, tone = () => null }) {
    this.body = element("tbody", { role: "rowgroup" });
    this.element = table(caption, titles);
    this.element.append(this.body);
    this.items = new Items(this.body, {
      key,
      make: () => row(titles),
      update: (made, item) => {
        mark(made, "data-tone", tone(item));
        cells(item).forEach((text, place) => say(made.children[place], text));
      },
    });
  }

  show(items) {
    this.items.show(items);
  }
}

/** A line that is there only while a list is empty. */
export function placeholder(text) {
  return element("p", { class: "quiet empty", hidden: true }, text);
}
