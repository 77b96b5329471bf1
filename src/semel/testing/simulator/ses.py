"""Amazon SES v2: JSON with a Signature Version 4, which is verified from the raw request."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, header_of, mail, unknown_credentials
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage, SimulatorState

KEY_ID, SECRET, REGION = "AKIDSIMULATED", "ses-secret", "eu-central-1"
PATH = "/v2/email/outbound-emails"
_PROOF = re.compile(
    rf"AWS4-HMAC-SHA256 Credential={KEY_ID}/(?P<day>\d{{8}})/{REGION}/ses/aws4_request, "
    r"SignedHeaders=(?P<signed>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)
_STATUSES = {"accepted": "Send", "delivered": "Delivery", "undelivered": "Bounce"}


class SesDialect(Dialect):
    name = "ses"
    prefix = "0100-"

    def other(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse | None:
        if (request.method, request.path) != ("POST", PATH):
            return self.refused(404, "not found")
        if _is_signed(request, f"/{self.name}{PATH}"):
            return None
        return self.refused(403, unknown_credentials(header_of(request)))

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body = request.json()
        (to,), (tag,) = body["Destination"]["ToAddresses"], body["EmailTags"]
        simple = body["Content"]["Simple"]
        texts = {kind: part["Data"] for kind, part in simple["Body"].items()}
        if not body["FromEmailAddress"] or tag["Name"] != "semel-id":
            raise ValueError("the sender is missing, or the tag is wrong")
        return mail(to, simple["Subject"]["Data"], texts.get("Text"), texts.get("Html"), ours=tag["Value"])

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return as_json(200, {"MessageId": reference})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"message": reason}, x_amzn_ErrorType="Simulated")

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        about = {"messageId": reference, "timestamp": "2026-05-01T14:00:00.000Z", "tags": {"semel-id": [message.ours]}}
        return "application/json", msgspec.json.encode({"eventType": _STATUSES[status], "mail": about})


def _is_signed(request: HttpRequest, path: str) -> bool:
    found = _PROOF.fullmatch(header_of(request))
    if found is None or "host" not in found["signed"].split(";"):
        return False
    names = found["signed"].split(";")
    headers = "".join(f"{name}:{request.headers.get(name, '')}\n" for name in names)
    canonical = f"{request.method}\n{path}\n\n{headers}\n{found['signed']}\n{sha256(request.body).hexdigest()}"
    scope = f"{found['day']}/{REGION}/ses/aws4_request"
    moment = request.headers.get("x-amz-date", "")
    to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (found["day"], REGION, "ses", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(hmac.digest(key, to_sign.encode(), "sha256").hex(), found["signature"])
