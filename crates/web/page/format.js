// Numbers and spans of time for people.

const UNITS = ["", "k", "M", "G", "T", "P"];

/** A number in at most five characters: 999, 1.2k, 34.5M; `–` for one that is not known. */
export function short(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  let [unit, left] = [0, Math.max(0, number)];
  while (left >= 999.5 && unit + 1 < UNITS.length) [unit, left] = [unit + 1, left / 1000];
  if (unit === 0) return Number.isInteger(left) || left >= 99.95 ? left.toFixed(0) : left.toFixed(1);
  return (left < 99.95 ? left.toFixed(1) : left.toFixed(0)) + UNITS[unit];
}

/** Bits a second from bytes a second: `12.3 Mbit/s`. */
export function bits(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const text = short(bytes * 8);
  const unit = /[a-z]$/i.test(text) ? text.slice(-1) : "";
  return `${unit ? text.slice(0, -1) : text} ${unit}bit/s`;
}

/** Bytes: `1.2 MB`. */
export function bytes(number) {
  const text = short(number);
  const unit = /[a-z]$/i.test(text) ? text.slice(-1) : "";
  return `${unit ? text.slice(0, -1) : text} ${unit}B`;
}

/** A whole number with its thousands apart. */
export function count(number) {
  return number.toLocaleString("en-US");
}

/** A number of things: `1 tunnel`, `3 tunnels`. */
export function things(number, one, several) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

/** A span of seconds in its two largest units: `3 min 5 s`. */
export function span(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(0, units.findIndex(([size]) => seconds >= size));
  if (seconds < 1) return "0 s";
  const [size, name] = units[first];
  const whole = `${Math.floor(seconds / size)} ${name}`;
  const small = units[first + 1];
  const rest = small ? Math.floor((seconds % size) / small[0]) : 0;
  return rest > 0 ? `${whole} ${rest} ${small[1]}` : whole;
}

/** What is left to a limit: `in 52 min`, `after 1.2 GB`. */
export function left(limit) {
  if (!limit) return "never";
  if (limit.left === 0) return "now";
  switch (limit.of) {
    case "bytes": return `after ${bytes(limit.left)}`;
    case "packets": return `after ${short(limit.left)} packets`;
    default: return `in ${span(limit.left)}`;
  }
}

/** A share of one in percent. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

/** A time of day from Unix milliseconds. */
export function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en-GB");
}

/** An end of a tunnel: an address that is unspecified is any. */
export function end(address) {
  return address === "0.0.0.0" || address === "::" ? "any" : address;
}

const PROTOCOLS = { 1: "ICMP", 6: "TCP", 17: "UDP", 50: "ESP", 58: "ICMPv6", 132: "SCTP" };

/** A flow in words. */
export function flow({ source, destination, protocol, source_port: from, destination_port: to }) {
  const name = PROTOCOLS[protocol] ?? `protocol ${protocol}`;
  if (protocol === 1 || protocol === 58) return `${name} ${source} → ${destination} type ${from}`;
  if (protocol === 6 || protocol === 17) return `${name} ${source} port ${from} → ${destination} port ${to}`;
  return `${name} ${source} → ${destination}`;
}
