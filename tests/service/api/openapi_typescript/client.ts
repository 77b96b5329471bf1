// Compiled against the generated types and run on Node: an operation or a field that the generator loses is a type error.
import type { components, operations } from "./schema.d.ts";

type NewNotification = components["schemas"]["NewNotification"];
type Added = operations["create_notification"]["responses"]["201"]["content"]["application/json"];
type Problem = operations["create_notification"]["responses"]["422"]["content"]["application/problem+json"];
type Verdicts = operations["claim_keys"]["responses"]["200"]["content"]["application/json"];

async function post<Answer>(path: string, body: unknown): Promise<Answer> {
  const answer = await fetch(`${process.env.SEMEL_URL}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${process.env.SEMEL_TOKEN}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await answer.json()) as Answer;
}

const reminder: NewNotification = {
  kind: "reminder", recipient: "+4917012345678", channel: "sms", key: "order-1", body: "Tomorrow at ten.",
};
const added = await post<Added>("/v1/notifications", reminder);
const problem = await post<Problem>("/v1/notifications", { ...reminder, body: "Today at ten." });
const batch: components["schemas"]["ClaimBatch"] = { items: [{ handler: "h", key: ["a", "b"] }] };
const verdicts = await post<Verdicts>("/v1/claims", batch);
console.log(JSON.stringify({ id: added.id, status: problem.status, verdict: verdicts.items[0]?.verdict }));
