// The gateway's documents, by the API of the server that this page is from.

/** Why there is no document. */
export class NoAnswer extends Error {
  constructor(title, detail, next, status = null) {
    super(detail);
    [this.title, this.detail, this.next, this.status] = [title, detail, next, status];
  }

  /** Whether the server is well and what was asked is wrong. */
  get isWrongQuestion() {
    return this.status === 400 || this.status === 414;
  }
}

/** How long the server may take. */
const PATIENCE = 70_000;

/** A document of `/api/v1/`; parameters without a value are left out. */
export async function ask(name, parameters = {}) {
  const some = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = some.length > 0 ? `?${new URLSearchParams(some)}` : "";
  let answer;
  try {
    answer = await fetch(`/api/v1/${name}${query}`, { signal: AbortSignal.timeout(PATIENCE), headers: { accept: "application/json" } });
  } catch {
    throw new NoAnswer("The page's server does not answer", "uxfrm web has ended, or the network is interrupted.", "systemctl start uxfrm-web, or: uxfrm web");
  }
  if (answer.ok) return answer.json();
  if (answer.status === 401) {
    location.assign("/login");
    return new Promise(() => {});
  }
  throw await refusal(answer);
}

async function refusal(answer) {
  try {
    const { title, detail, next } = await answer.json();
    return new NoAnswer(title, detail, next, answer.status);
  } catch {
    return new NoAnswer("The server's answer can't be read", `${answer.status} ${answer.statusText}`, "see the log of uxfrm-web");
  }
}
