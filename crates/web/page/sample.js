// What the gateway told at an instant, with what grew since the instant before.

import { NoAnswer, ask } from "./api.js";
import { tunnelKey, tunnelRates, workerRates } from "./rates.js";

/** Records of dropped packets that are kept, as the gateway keeps so many. */
const RECORDS = 1024;

/** One sample of all documents that views show. */
export class Sample {
  constructor({ status, counters, workers, drops }, before) {
    Object.assign(this, { status, counters, workers, drops, at: performance.now() / 1000 });
    const isSame = before?.status.gateway.pid === status.gateway.pid && before.status.gateway.started === status.gateway.started;
    this.before = isSame ? before : null;
    if (this.before) this.before.before = null;
    this.seconds = this.before ? this.at - this.before.at : null;
    this.tunnels = new Map(status.tunnels.map((tunnel) => [tunnelKey(tunnel), tunnel]));
    this.rates = this.#rates();
  }

  /** What a tunnel receives and sends. */
  tunnel(tunnel) {
    return tunnelRates(this.before?.tunnels.get(tunnelKey(tunnel)), tunnel, this.seconds);
  }

  /** Packets a second that are dropped for a reason. */
  reason(name) {
    if (!this.before) return null;
    return Math.max(0, this.counters.reasons[name] - (this.before.counters.reasons[name] ?? 0)) / this.seconds;
  }

  /** Bytes a second in and out, packets dropped a second, of the whole gateway. */
  #rates() {
    const before = this.before;
    if (!before) return { received: null, sent: null, dropped: null };
    const dropped = Math.max(0, this.status.totals.dropped - before.status.totals.dropped) / this.seconds;
    const parts = (this.workers?.workers ?? []).map((now) => workerRates(before.workers?.workers.find(({ worker }) => worker === now.worker), now));
    // Workers publish once a second: one that has not since is as it was.
    if (parts.length === 0 || parts.includes(null)) return { ...before.rates, dropped };
    const sum = (part) => parts.reduce((all, rates) => all + part(rates), 0);
    return { received: sum((rates) => rates.received.bytes), sent: sum((rates) => rates.sent.bytes), dropped };
  }
}

/** A gateway of before does not know the question; one that is not there answers the others neither. */
function unknown(problem) {
  if (!(problem instanceof NoAnswer)) throw problem;
  return null;
}

/** Asks for samples, and for no record twice. */
export class Sampler {
  #records = [];
  #advice = new Map();
  #next = null;
  #process = null;

  async read(query, before) {
    const [status, counters, workers] = await Promise.all([ask("status", query), ask("counters"), ask("workers").catch(unknown)]);
    const process = `${status.gateway.pid} ${status.gateway.started}`;
    if (process !== this.#process) [this.#process, this.#next, this.#records] = [process, null, []];
    const drops = await ask("drops", { from: this.#next });
    this.#next = drops.next;
    this.#records.push(...drops.records);
    this.#records.splice(0, this.#records.length - RECORDS);
    for (const advice of drops.advice) this.#advice.set(advice.reason, advice);
    return new Sample({ status, counters, workers, drops: { records: this.#records, advice: [...this.#advice.values()] } }, before);
  }
}
