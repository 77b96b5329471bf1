/** An EventBridge event, acted on once. Run it with Node or Deno, the event on standard input. */

import process from "node:process";
import { type Handled, type Refused, Semel, why } from "./semel.ts";

/** What Genesys Cloud publishes under v2.detail.events.conversation.{id}.customer.end */
type CustomerEnd = {
  id: string;
  detail: {
    topicName: string;
    eventBody: { conversationId: string; participantId: string; sessionId: string; eventTime: number };
  };
};

const { SEMEL_URL = "http://127.0.0.1:8080", SEMEL_TOKEN = "", SEMEL_LEASE = "25", SURVEY_URL = "" } = process.env;
const semel = new Semel(SEMEL_URL, SEMEL_TOKEN);

/** Send the customer a survey, once. Two copies of the event, two machines and a crash in between come to one survey. */
export function handler(event: CustomerEnd): Promise<Handled | Refused> {
  const { topicName, eventBody } = event.detail;
  const claim = {
    handler: "survey",
    // Not the event's `id`: a producer's own retry puts a new one around the same detail.
    key: [topicName, eventBody.participantId, eventBody.sessionId, String(eventBody.eventTime)],
    lease: Number(SEMEL_LEASE),
    payload: eventBody,
    max_attempts: 8,
    event,
  };
  return semel.once(claim, async (granted, lost) => {
    // A crash after this request and before the settle repeats it: the survey service knows the key again.
    const headers = { "Content-Type": "application/json", "Idempotency-Key": granted.key };
    const body = JSON.stringify({ conversation: eventBody.conversationId, attempt: granted.attempt });
    const reply = await fetch(SURVEY_URL, { method: "POST", headers, body, signal: lost });
    if (!reply.ok) throw new Error(`the survey service answered ${reply.status}`);
    return await reply.json();
  });
}

/** A queue would be told to bring the event again after so many seconds. Here we wait ourselves. */
export function comesAgainAfter(outcome: Handled | Refused): number | undefined {
  if (outcome.verdict === "busy") return outcome.after;
  if (outcome.verdict !== "handled") return undefined;
  if (!outcome.settled) return 0; // the lease was lost: whoever has it now decides
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
    after = comesAgainAfter(outcome);
    if (after !== undefined) await new Promise((resolve) => setTimeout(resolve, 1000 * (after ?? 0)));
  } while (after !== undefined);
}

if (import.meta.main) {
  await main().catch((error) => {
    console.error(why(error));
    process.exitCode = 1;
  });
}
