// What grew between two samples, by the second.

/** Tells a tunnel from all others. */
export function tunnelKey({ local, remote, mode, reqid, if_id: id }) {
  return `${local} ${remote} ${mode} ${reqid} ${id}`;
}

/**
 * Bytes and packets a second that a tunnel received and sent since it was `before`: of its present
 * states, so that a rekey makes no leap; `null` where that is not known.
 */
export function tunnelRates(before, now, seconds) {
  if (!before || !(seconds > 0)) return null;
  const hasAll = (tunnel) => tunnel.states.length === tunnel.states_total;
  const way = (direction, total) => {
    const grown = hasAll(before) && hasAll(now)
      ? byState(before, now, direction)
      : since(before[total], now[total]);
    return grown && { bytes: grown.bytes / seconds, packets: grown.packets / seconds };
  };
  return { received: way("in", "received"), sent: way("out", "sent") };
}

function byState(before, now, direction) {
  const sum = { bytes: 0, packets: 0 };
  for (const state of now.states.filter((state) => state.direction === direction)) {
    const was = before.states.find((other) => other.spi === state.spi && other.destination === state.destination);
    const grown = (was && since(was.traffic, state.traffic)) || state.traffic;
    sum.bytes += grown.bytes;
    sum.packets += grown.packets;
  }
  return sum;
}

function since(before, now) {
  const [bytes, packets] = [now.bytes - before.bytes, now.packets - before.packets];
  return bytes < 0 || packets < 0 ? null : { bytes, packets };
}

/** The sum of named counts. */
export function total(counts) {
  return Object.values(counts).reduce((sum, number) => sum + number, 0);
}

/** What a worker did between two of its publications; `null` where that is not known. */
export function workerRates(before, now) {
  if (!before || before.measured_ns === 0 || now.measured_ns <= before.measured_ns) return null;
  const span = now.measured_ns - before.measured_ns;
  const seconds = span / 1e9;
  const rate = (part) => (part(now) - part(before)) / seconds;
  const packets = rate((worker) => worker.outbound.received + worker.inbound.received);
  if (packets < 0) return null;
  const cpu = now.cpu_ns - before.cpu_ns;
  const busy = cpu >= 0 ? Math.min(1, cpu / span) : null;
  const perPacket = busy !== null && packets > 0 ? (busy * 1e9) / packets : null;
  const ticks = now.time_stamp !== undefined && before.time_stamp !== undefined ? (now.time_stamp - before.time_stamp) / span : null;
  return {
    busy,
    packets,
    sent: { bytes: rate((worker) => worker.outbound.received_bytes), packets: rate((worker) => worker.outbound.received) },
    received: { bytes: rate((worker) => worker.inbound.sent_bytes), packets: rate((worker) => worker.inbound.sent) },
    batches: rate((worker) => worker.batches),
    dropped: rate((worker) => worker.outbound.dropped + worker.inbound.dropped),
    cycles: perPacket !== null && ticks !== null ? perPacket * ticks : null,
    seconds,
  };
}
