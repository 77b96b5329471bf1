/** A client of Semel's HTTP API: handles every event once. Needs only `fetch`: runs on Node, Deno and workers. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export type Claim = {
  handler: string; // the owner of the effect: part of the key
  key: string | string[]; // the identity of the effect
  lease?: number; // seconds, like all times
  retention?: number;
  payload?: Json; // the same key with another payload is a conflict
  order?: { subject: string | string[]; position: number };
  max_attempts?: number;
  park?: boolean; // at most once: an uncertain event is not retried
  event?: Json; // stored if the claim makes it a dead letter; `once` includes it again in the settle
};

type Grant = { key: string; lease: string; token: number; attempt: number };
export type Granted = Grant & { verdict: "granted"; takeover: boolean; expires_in: number; age: number };

export type Refused =
  | { verdict: "settled"; key: string; outcome: "done" | "reject" | "uncertain"; result: Json; reason: string }
  | { verdict: "busy"; key: string; after: number }
  | { verdict: "stale" | "conflict"; key: string }
  | { verdict: "dead"; key: string; reason: string };

export type Settlement =
  | { lease: string; outcome: "done"; result?: Json }
  | { lease: string; outcome: "retry"; after?: number; reason?: string; event?: Json }
  | { lease: string; outcome: "reject" | "uncertain"; reason: string; event?: Json }
  | { lease: string; outcome: "release" };

export type Answer = { settled: boolean; outcome?: Settlement["outcome"]; after?: number; reason?: string };
export type Handled = Answer & { verdict: "handled"; key: string; result: Json };

/** Thrown by a handler: this event will never succeed. After any other error, the event is retried. */
export class Reject extends Error {}

/** The text of an error with its cause: "fetch failed" alone does not name the problem. */
export function why(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const cause = error.cause as { code?: string; message?: string } | undefined;
  return cause ? `${error.message}: ${cause.code ?? cause.message ?? cause}` : error.message;
}

export class Semel {
  #url: string;
  #headers: Record<string, string>;

  constructor(url: string, token: string) {
    this.#url = url;
    this.#headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  }

  claim = (...items: Claim[]) => this.#post<Granted | Refused>("", items);
  settle = (...items: Settlement[]) => this.#post<Answer>("/settle", items);
  renew = (...leases: string[]) => this.#post<{ renewed: boolean }>("/renew", leases.map((lease) => ({ lease })));

  /** Claim, handle, settle. The lease is renewed while the handler runs; `lost` aborts when another worker has it. */
  async once(
    claim: Claim,
    handle: (granted: Granted, lost: AbortSignal) => Promise<Json>,
  ): Promise<Handled | Refused> {
    const [granted] = await this.claim(claim);
    if (granted.verdict !== "granted") return granted;
    const lost = new AbortController();
    const beat = setInterval(async () => {
      const [answer] = await this.renew(granted.lease).catch(() => [{ renewed: true }]); // it may be valid
      if (!answer.renewed) lost.abort(new Error("the lease was lost"));
    }, granted.expires_in * 333);
    try {
      const { key, lease } = granted;
      const [ending, result, reason] = await handle(granted, lost.signal).then(
        (result): [Settlement, Json, string?] => [{ lease, outcome: "done", result }, result],
        (error): [Settlement, Json, string?] => {
          const [outcome, reason] = [error instanceof Reject ? "reject" as const : "retry" as const, why(error)];
          return [{ lease, outcome, reason, event: claim.event }, null, reason];
        },
      );
      const [answer] = await this.settle(ending);
      return { verdict: "handled", key, result, reason, ...answer };
    } finally {
      clearInterval(beat);
    }
  }

  /** Repeats a request without a reply: a settle may be repeated, and a granted claim is busy for its lease. */
  async #post<T>(path: string, items: unknown[], tries = 3): Promise<T[]> {
    const sent = { method: "POST", headers: this.#headers, body: JSON.stringify({ items }) };
    const reply = await fetch(`${this.#url}/v1/claims${path}`, sent).catch((error: Error) => error);
    if (reply instanceof Response && reply.ok) return (await reply.json()).items;
    const temporary = reply instanceof Error || reply.status === 429 || reply.status === 503;
    if (!temporary || tries === 1) {
      const problem = reply instanceof Error ? `${why(reply)}. Is it running?` : await reply.text();
      throw new Error(`Semel at ${this.#url}: ${problem}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
    return this.#post(path, items, tries - 1);
  }
}
