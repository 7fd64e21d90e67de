// The page: which view is shown, when the gateway is asked, and what is said where it does not
// answer.

import { NoAnswer } from "./api.js";
import { element, mark, say } from "./dom.js";
import { end, span } from "./format.js";
import { TunnelQuery } from "./picker.js";
import { Sampler } from "./sample.js";
import { listen } from "./stream.js";
import { Drops } from "./views/drops.js";
import { Events } from "./views/events.js";
import { States } from "./views/states.js";
import { Tunnels } from "./views/tunnels.js";
import { Why } from "./views/why.js";
import { Workers } from "./views/workers.js";

/** From one sample to the next, in milliseconds. */
const EVERY = 2000;
/** How many times longer than an answer took nothing is asked behind it: of very many tunnels. */
const RESTS = 4;

const [main, banner, announcer] = ["main", "banner", "announcer"].map((id) => document.getElementById(id));
const [identity, connection] = ["identity", "connection"].map((id) => document.getElementById(id));

const query = new TunnelQuery();
const views = {
  tunnels: new Tunnels({ query }),
  drops: new Drops(),
  states: new States({ query }),
  workers: new Workers(),
  why: new Why(),
  events: new Events(),
};
const title = element("h2", { id: "view-title", tabindex: "-1" });
let shown = null;
let sample = null;
let wake = () => {};

/** Shows the view that the address names. */
function route() {
  const name = location.hash.slice(1);
  const isFirst = shown === null;
  shown = views[name] ?? views.tunnels;
  say(title, shown.title);
  document.title = `${shown.title} · uxfrm`;
  main.replaceChildren(title, shown.element);
  for (const link of document.querySelectorAll("#views a")) {
    mark(link, "aria-current", views[link.hash.slice(1)] === shown ? "page" : null);
  }
  if (sample) shown.show(sample);
  if (!isFirst) title.focus({ preventScroll: true });
}

function announce(text) {
  announcer.textContent = text;
}

/** Says what is wrong, or nothing any more. */
function warn(problem) {
  const state = problem ? "gone" : "live";
  if (document.body.dataset.state !== state) {
    announce(problem ? problem.title : "The gateway answers");
    document.body.dataset.state = state;
  }
  mark(connection, "data-state", state);
  say(connection, problem ? "not answering" : "live");
  banner.hidden = !problem;
  if (!problem) return;
  const since = sample ? ` What is shown is ${span(performance.now() / 1000 - sample.at)} old.` : "";
  const parts = [element("strong", {}, `${problem.title}.`), ` ${problem.detail}${since}`];
  if (problem.next) parts.push(element("span", { class: "next" }, `Next: ${problem.next}`));
  banner.replaceChildren(...parts);
}

function introduce({ gateway, age_seconds: age }) {
  const late = age > 1 ? `, as of ${span(age)} ago` : "";
  say(identity, `${gateway.version} · ${gateway.mode} mode · up ${span(gateway.uptime_seconds)}${late}`);
  mark(identity, "title", `pid ${gateway.pid}, ${gateway.configuration}`);
}

/** Asks again and again; while the page is hidden not at all. */
async function poll() {
  const sampler = new Sampler();
  for (;;) {
    if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    const begin = performance.now();
    const { peer } = query;
    try {
      sample = await sampler.read(query.parameters(), sample);
      query.accept(peer);
      introduce(sample.status);
      views.tunnels.note(sample);
      shown.show(sample);
      warn(null);
    } catch (problem) {
      if (!(problem instanceof NoAnswer)) throw problem;
      // An address that is none is the field's matter: the gateway is asked again without it.
      if (problem.isWrongQuestion && query.refuse(peer, problem.detail)) continue;
      warn(problem);
    }
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, Math.max(EVERY, RESTS * (performance.now() - begin)));
    });
  }
}

const TURNS = { went: ["bad", "the gateway went"], came: ["good", "a gateway answers"], replaced: ["good", "another process answers"] };

listen({
  drop: (record) => views.events.addDrop(record),
  tunnel: ({ remote, before, health, explanation }) => {
    const turn = `tunnel to ${end(remote)}: ${before ?? "new"} → ${health ?? "gone"}`;
    const tone = { up: "good", idle: "quiet" }[health] ?? "bad";
    views.events.add("tunnel", tone, explanation ? `${turn} (${explanation})` : turn);
    if (health === "down" || health === "one-way" || before === "down" || before === "one-way") announce(turn);
  },
  gateway: ({ kind, detail }) => {
    const [tone, text] = TURNS[kind] ?? ["quiet", kind];
    views.events.add("gateway", tone, detail ? `${text}: ${detail}` : text);
    wake();
  },
  heartbeat: () => views.events.connected("connected"),
  missed: ({ events }) => views.events.add("gateway", "warn", `${events} events came too fast to be told`),
}, (turn) => views.events.connected(turn));

// The address names the view, so it is not the skip link's.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
query.addEventListener("change", () => wake());
addEventListener("hashchange", route);
route();
poll();
