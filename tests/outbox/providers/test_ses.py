"""Features of SES: requests match the service model of AWS, and throttling has two forms."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.outbox.providers.kits import mail

from semel.http_client.client import Answered
from semel.providers.registry import provider
from semel.providers.ses import Ses
from semel.testing.provider_laws import dispatch_of
from semel.values.delivery_state import Refused
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport
from semel.values.secret import Secret

OPTIONS = {
    "region": "eu-central-1",
    "access_key_id": "AKID",
    "secret_access_key": Secret("secret"),
    "sender": "Grüße GmbH <shop@example.test>",
    "configuration_set": "events",
}


def ses() -> Ses:
    made = provider("ses", "ses", OPTIONS)
    assert isinstance(made, Ses)
    return made


@pytest.mark.parametrize(
    "said", [mail("a"), mail("a", body="only text"), mail("a", body=None, template="t", data={"name": "é", "n": 1})]
)
def test_the_request_matches_the_service_model_of_aws(said: Notification) -> None:
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    model = ServiceModel(create_loader().load_service_model("sesv2", "service-2"), "sesv2")
    operation = model.operation_model("SendEmail")
    request = msgspec.json.decode(ses().prepare(dispatch_of(said)))
    document = msgspec.json.decode(request["body"])
    shape = operation.input_shape
    assert shape is not None
    problems = ParamValidator().validate(document, shape)
    assert not problems.has_errors(), problems.generate_report()
    assert document.keys() <= shape.members.keys(), "the validator lets unknown names pass"
    assert request["path"] == operation.http["requestUri"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-amzn-errortype": "ThrottlingException"}, b"{}"),
        ({"x-amzn-errortype": "ThrottlingException:http://internal.amazon.com/"}, b"{}"),
        ({}, b'{"__type": "com.amazon#TooManyRequestsException"}'),
    ],
)
def test_throttling_is_not_a_refusal_of_the_mail(headers: Mapping[str, str], body: bytes) -> None:
    answer = ses().classify(Answered(400, body, headers=headers))
    assert isinstance(answer, Refused)
    assert answer.limited
    final = ses().classify(Answered(400, b'{"__type": "MessageRejected"}'))
    assert isinstance(final, Refused)
    assert final.final


EVENT = {
    "eventType": "Delivery",
    "mail": {"timestamp": "2025-06-15T15:06:40Z", "messageId": "m-1", "tags": {"semel-id": ["0a" * 16]}},
}


@pytest.mark.parametrize(
    "wrapped",
    [
        EVENT,
        {"Type": "Notification", "Message": msgspec.json.encode(EVENT).decode()},
        {"source": "aws.ses", "detail": EVENT},
    ],
    ids=["plain", "SNS", "EventBridge"],
)
def test_an_event_is_read_however_it_comes(wrapped: dict[str, Any]) -> None:
    expected = DeliveryReport("delivered", b"\x0a" * 16, "ses", "m-1", 1_750_000_000_000, "callback: Delivery")
    assert ses().reports({}, msgspec.json.encode(wrapped)) == [expected]


def test_it_is_closed() -> None:
    asyncio.run(ses().close())
