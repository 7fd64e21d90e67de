// The server's events, with a connection that comes back.

/** From one try to the next where the server refuses, in milliseconds. */
const AGAIN = 5000;

/** Listens; `heard` has a function for each event's name, `turned` is told of the connection. */
export function listen(heard, turned) {
  const source = new EventSource("/api/v1/events");
  for (const [name, take] of Object.entries(heard)) {
    source.addEventListener(name, (event) => take(JSON.parse(event.data)));
  }
  source.addEventListener("open", () => turned("connected"));
  source.addEventListener("error", () => {
    turned("interrupted");
    // A refusal ends it; an interruption is mended by the browser.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(heard, turned), AGAIN);
  });
}
