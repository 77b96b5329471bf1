/** Handles one EventBridge event once. Run it with Node or Deno, with the event on standard input. */

import process from "node:process";
import { type Handled, type Refused, Semel, why } from "./semel.ts";

/** The event that Genesys Cloud publishes under v2.detail.events.conversation.{id}.customer.end */
type CustomerEnd = {
  id: string;
  detail: {
    topicName: string;
    eventBody: { conversationId: string; participantId: string; sessionId: string; eventTime: number };
  };
};

const { SEMEL_URL = "http://127.0.0.1:8080", SEMEL_TOKEN = "", SEMEL_LEASE = "25", SURVEY_URL = "" } = process.env;
const semel = new Semel(SEMEL_URL, SEMEL_TOKEN);

/** Send the customer one survey, also with two copies of the event, on two machines, and after a crash. */
export function handler(event: CustomerEnd): Promise<Handled | Refused> {
  const { topicName, eventBody } = event.detail;
  const claim = {
    handler: "survey",
    // Not the event's `id`: a producer's retry has a new id for the same detail.
    key: [topicName, eventBody.participantId, eventBody.sessionId, String(eventBody.eventTime)],
    lease: Number(SEMEL_LEASE),
    payload: eventBody,
    max_attempts: 8,
    event,
  };
  return semel.once(claim, async (granted, lost) => {
    // A crash between this request and the settle repeats the request: the survey service recognises the key.
    const headers = { "Content-Type": "application/json", "Idempotency-Key": granted.key };
    const body = JSON.stringify({ conversation: eventBody.conversationId, attempt: granted.attempt });
    const reply = await fetch(SURVEY_URL, { method: "POST", headers, body, signal: lost });
    if (!reply.ok) throw new Error(`the survey service answered ${reply.status}`);
    return await reply.json();
  });
}

/** Seconds until the next delivery. A queue would delay the event; this program waits instead. */
export function retryAfter(outcome: Handled | Refused): number | undefined {
  if (outcome.verdict === "busy") return outcome.after;
  if (outcome.verdict !== "handled") return undefined;
  if (!outcome.settled) return 0; // the lease was lost: its present holder decides
  return outcome.outcome === "retry" ? outcome.after : undefined;
}

async function main(): Promise<void> {
  if (!SEMEL_TOKEN) throw "set SEMEL_TOKEN: `semel token survey-worker --scope claims` makes a token";
  if (!SURVEY_URL) throw "set SURVEY_URL: where surveys are sent, a URL that answers a POST with JSON";
  let text = "";
  for await (const chunk of process.stdin) text += chunk;
  const event = JSON.parse(text);
  let after: number | undefined;
  do {
    const outcome = await handler(event);
    console.log(JSON.stringify(outcome)); // with the reason, where something went wrong
    after = retryAfter(outcome);
    if (after !== undefined) await new Promise((resolve) => setTimeout(resolve, 1000 * (after ?? 0)));
  } while (after !== undefined);
}

if (import.meta.main) {
  await main().catch((error) => {
    console.error(why(error));
    process.exitCode = 1;
  });
}
