"""SNS signatures over the whole of a message.

The fixed vector was made outside of Python; its private key was thrown away:
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 36500 -subj /CN=sns.amazonaws.com
    printf 'Message\n…\nMessageId\n…\nSubject\n…\nTimestamp\n…\nTopicArn\n…\nType\nNotification\n' > text
    openssl dgst -sha256 -sign key.pem text | base64 -w0                                (version 1: -sha1)
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.verification.asking import short, verified
from tests.service.verification.sns_sender import (
    CONFIRM_URL,
    CONFIRMATION,
    NOTIFICATION,
    TOPIC,
    Host,
    posted,
    rsa_key,
    sign,
    sns,
)

from semel.values.errors import MalformedEvent
from semel.verifiers import SnsMessage, unwrap

CERTIFICATE = b"""\
-----BEGIN CERTIFICATE-----
MIIDGzCCAgOgAwIBAgIUEligTXMPNw2D4YSy9lu6RfQt9mEwDQYJKoZIhvcNAQEL
BQAwHDEaMBgGA1UEAwwRc25zLmFtYXpvbmF3cy5jb20wIBcNMjYxMTE2MDQwMzE4
WhgPMjEyNjEwMjMwNDAzMThaMBwxGjAYBgNVBAMMEXNucy5hbWF6b25hd3MuY29t
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAwUdT0efZiNEopc6qXhQ9
C0xsNG7eIauyqma9m0YAT2pZbRAYXVtVKUfNl77PvEyyBHsEWr9xlt3sEBnB++2A
YKmKcHfaMNr0Z9QfKPBhE/+UJ3lAVbxwuFoQlmhhW/m3g9EJjM3+F1LWiU0FhPYA
gk6BQ4AnarC3Tyyk7yIVN5nHHD36cmZwWAaVLx0DS5pwgWhUi9qMMRMgvE1v8V/F
GxDyneuwtoRSlA/ysSO+JARylIivNnLMhLwDvoIiVLtV9Ziyprvsz3Ud/ocmVLmN
mQycnn78UjYWaAnO4D36eHkJ7bz1Pyb2MSi+oVPJlqdV5RF0VMkZ5VtapiQ+gHxr
dwIDAQABo1MwUTAdBgNVHQ4EFgQUnHSzo5pqtdHqoJweOzn1ijQLNE0wHwYDVR0j
BBgwFoAUnHSzo5pqtdHqoJweOzn1ijQLNE0wDwYDVR0TAQH/BAUwAwEB/zANBgkq
hkiG9w0BAQsFAAOCAQEAegAvQGRDdZWN9ukb7wsGp5Ur8IOeBStLDLUpQtZeXSri
RAMHnfsvY0XCXhk6NJuaqPe7wSrzfCAcq4YUCGJAXMk15DSaYrRLVXnE1W+yWg3H
sl+iMeQm9zGYWComnxiBos4VnFeqTP5K+rO47MxPf0WwevBUYDcdUllwW76KTVwK
3UpS6FWWkFlL0IWk6Lm3SkGGBOEwnNIsIzab72RY4tFm6+6UlyyE0O7Q6Gqiidyz
uurJ91+b2VR2vrd7mEyhkEZR95ywv0ZxOgoSIDxafpFFKtbTF7S7gvvbzdxL02ZI
ul+SMqWAkaPMFhiSBAjZpUWBmcv4c7qiqHWViRmgcg==
-----END CERTIFICATE-----
"""
BY_SHA1 = (
    "edtzO+GFZ24YCHNwAA5doMp/Z+OK4e2bg4XG+4fgt8t2QuLBTVkWOMQPT4TS5D0ysmnyiRL25t5Uy307HoSqagC08NevM6G+TlGltRgv"
    "zxGv+2HjwuPkANIBUTmw1MaIzV0fb31L+wopnbUp5mqiHf3juwNee7gEpdCaa8j/YtQ0WTYmhz4KD/mUYqHxuZaMJLAjShOF1da+BXRb"
    "Wa0AuiBVNYvHuO4zKKyUnc0nFJIWDaCHdG6CE5THF2XZOv4Iz+ODFi5pGMn33UL4TWuQV5ZHCqN+FgX6RVys5wntzzK354FcpCz/nAf+"
    "3YfDk75hYNJ5J8pD7XjtSp8zx/t45w=="
)
BY_SHA256 = (
    "B7S1UQj4PLU4aCrPcWHuHbGkViIBVMNnFww2JTRMRo4y/rth8xbJKHj+yqb1LjBVSCPcNAOQQiYVXsX1pIJF61dL7vCWfPJjB8Iqo8qQ"
    "ygAAtyrcL8M6xySJ4TKxvTRjo6qs/iQ4HYUnw/cZaCb1UU2NvpAbGDgm846hPRhgc3XCTDzOWCps+l4xsMtMKOEL4kqAH9vu/lyG65cv"
    "QeJwsDQtr3w6eHz9TdUmVIKeAc95tjy0j22S98daYTySz3FmkGnyYi26FlIFAzDJdGTfFSsRncfLUYOTI0iAwWAtQ5W8BB13JBoXHppQ"
    "qRWeluh6sOaBANrAvdzmP1qwq4BXcQ=="
)
CONFIRMATION_BY_SHA256 = (
    "u0ZmiB9dzfztFMV8PrLnN4x7moiMXcgXrPzqfPUgMni7fnxNDMofhd07KE0MnfEn43IENJVwSvkxwABJQC62Gjph9P99671Gzbvi7v2b"
    "g5XIIiHEOjAceAlHe+l9SAPrOSzFgtSsfOZBI+U4DO3u8fykX5xCTE4f7Uj5qMw0FZ70WI7+loDJmxnkIOnhqjcg3Dk59e8y3IOzQI0z"
    "8YL5kkL501mN9OoJvVZ6/8v8oU10CZ20Vw/ijrpQqiyPQ/85/aRJGtxK08hd8SwJMedrg1DzfxjIi4OPvvomGtOtz3tbfzHaSSsnvKqR"
    "TPesRk8s43Bt/UVNA8n5vkKws6SW+w=="
)
FIXED = b"""{
  "Type" : "Notification",
  "MessageId" : "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
  "TopicArn" : "arn:aws:sns:us-west-2:123456789012:MyTopic",
  "Subject" : "My First Message",
  "Message" : "{\\"id\\":\\"e-1\\",\\"type\\":\\"interaction.created\\"}",
  "Timestamp" : "2012-05-02T00:54:06.655Z",
  "SignatureVersion" : "VERSION",
  "Signature" : "SIGNATURE",
  "SigningCertURL" : "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem",
  "UnsubscribeURL" : "https://sns.us-west-2.amazonaws.com/?Action=Unsubscribe&SubscriptionArn=arn:aws:sns:us-west-2:1:x"
}"""
FIXED_CONFIRMATION = b"""{
  "Type" : "SubscriptionConfirmation",
  "MessageId" : "165545c9-2a5c-472c-8df2-7ff2be2b3b1b",
  "Token" : "2336412f37fb687f",
  "TopicArn" : "arn:aws:sns:us-west-2:123456789012:MyTopic",
  "Message" : "You have chosen to subscribe to the topic.",
  "SubscribeURL" : "CONFIRM_URL",
  "Timestamp" : "2012-04-26T20:45:04.751Z",
  "SignatureVersion" : "2",
  "Signature" : "SIGNATURE",
  "SigningCertURL" : "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
}"""


def filled(template: bytes, **values: str) -> bytes:
    for name, value in values.items():
        assert name.encode() in template
        template = template.replace(name.encode(), value.encode())
    return template


@pytest.mark.parametrize(("version", "signature"), [("1", BY_SHA1), ("2", BY_SHA256)])
def test_the_fixed_notification_verifies_in_both_versions(version: str, signature: str) -> None:
    ours = sns(Host(CERTIFICATE))
    body = filled(FIXED, VERSION=version, SIGNATURE=signature)
    assert verified(ours, body)
    assert not verified(ours, body.replace(b"e-1", b"e-2"))


@pytest.mark.parametrize(("version", "signature"), [("2", BY_SHA1), ("1", BY_SHA256), ("3", BY_SHA256), ("", BY_SHA1)])
def test_a_version_that_is_not_the_signatures_is_refused(version: str, signature: str) -> None:
    assert not verified(sns(Host(CERTIFICATE)), filled(FIXED, VERSION=version, SIGNATURE=signature))


@pytest.mark.parametrize(
    "wrong",
    [{"SignatureVersion": "3"}, {"SignatureVersion": 2}, {"Signature": "?"}, {"Signature": "A" * 1372}],
    ids=short,
)
def test_an_invalid_message_causes_no_fetch(wrong: dict[str, Any]) -> None:
    host = Host()
    assert not verified(sns(host), posted({**sign(NOTIFICATION), **wrong}))
    assert host.asked == []


def test_the_fixed_confirmation_verifies() -> None:
    ours = sns(Host(CERTIFICATE))
    assert verified(ours, filled(FIXED_CONFIRMATION, CONFIRM_URL=CONFIRM_URL, SIGNATURE=CONFIRMATION_BY_SHA256))
    elsewhere = CONFIRM_URL.replace("us-west-2.amazonaws.com", "us-west-2.evil.com")
    assert not verified(ours, filled(FIXED_CONFIRMATION, CONFIRM_URL=elsewhere, SIGNATURE=CONFIRMATION_BY_SHA256))


@pytest.mark.parametrize(
    "message",
    [
        NOTIFICATION,
        {**NOTIFICATION, "Subject": "Grüße"},
        {**NOTIFICATION, "Message": 'several\nlines, \t a "quote", \\, 😀 and MessageId\nx\n'},
        {**NOTIFICATION, "Message": ""},
        CONFIRMATION,
        {**CONFIRMATION, "Type": "UnsubscribeConfirmation"},
    ],
)
@pytest.mark.parametrize("version", ["1", "2"])
def test_every_kind_of_message_verifies(message: dict[str, str], version: str) -> None:
    assert verified(sns(Host()), posted(sign(message, version)))


@pytest.mark.parametrize("message", [{**NOTIFICATION, "Subject": "s"}, CONFIRMATION])
def test_each_signed_member_counts(message: dict[str, str]) -> None:
    ours = sns(Host(), TOPIC, TOPIC + "x")
    whole = sign(message)
    assert verified(ours, posted(whole))
    for name in message:
        others: list[Any] = [whole[name] + "x", whole[name][:-1], "", None, 1, [whole[name]], {}]
        for other in others:
            assert not verified(ours, posted({**whole, name: other})), (name, other)
        assert not verified(ours, posted({key: value for key, value in whole.items() if key != name})), name


def test_members_that_are_not_signed_may_be_anything() -> None:
    extra = {
        "UnsubscribeURL": 1,
        "MessageAttributes": {"a": {"Type": "String", "Value": "b"}},
        "New": None,
        "Subject": None,
    }
    assert verified(sns(Host()), posted({**sign(NOTIFICATION), **extra}))


def test_a_subject_that_is_no_text_is_refused() -> None:
    assert not verified(sns(Host()), posted({**sign(NOTIFICATION), "Subject": 1}))


@pytest.mark.parametrize("type_", ["SubscriptionConfirmation", "UnsubscribeConfirmation"])
def test_a_message_of_one_type_is_none_of_another(type_: str) -> None:
    ours = sns(Host())
    assert not verified(ours, posted({**sign({**CONFIRMATION, **NOTIFICATION}), "Type": type_}))
    assert not verified(ours, posted({**sign({**CONFIRMATION, "Type": type_}), "Type": "Notification"}))


def test_a_topic_that_is_not_accepted_is_refused_before_anything_is_fetched() -> None:
    """Anyone can make a topic and have SNS sign whatever they like."""
    host = Host()
    body = posted(sign({**NOTIFICATION, "TopicArn": "arn:aws:sns:us-west-2:999999999999:MyTopic"}))
    assert not verified(sns(host), body)
    assert host.asked == []
    assert verified(sns(host, TOPIC, "arn:aws:sns:us-west-2:999999999999:MyTopic"), body)


def test_another_key_is_refused() -> None:
    assert not verified(sns(Host()), posted(sign(NOTIFICATION, key=rsa_key(3072))))


@pytest.mark.parametrize(
    "signature", ["", "AAAA", "=", "ä", "not base64!", "A" * 344, "A" * 1372, "A" * 900_000, 7, None]
)
def test_a_signature_of_another_form_is_refused(signature: Any) -> None:
    assert not verified(sns(Host()), posted({**sign(NOTIFICATION), "Signature": signature}))


def test_the_signed_text_has_one_reading() -> None:
    """Lines are not escaped in what SNS signs: a message can look like the members that come after it."""
    real = {**NOTIFICATION, "Message": "safe\nMessageId\nforged"}
    whole = sign(real)
    assert verified(sns(Host()), posted(whole))
    cut = {**whole, "Message": "safe", "MessageId": f"forged\nMessageId\n{real['MessageId']}"}
    assert sign(cut)["Signature"] == whole["Signature"], "the very same bytes are signed"
    assert not verified(sns(Host()), posted(cut))


def test_a_duplicate_name_is_refused() -> None:
    body = posted(sign(NOTIFICATION))
    assert verified(sns(Host()), body)
    assert not verified(sns(Host()), body[:-1] + b', "Message": "another"}')
    assert not verified(sns(Host()), b'{"Message": "another", ' + body[1:])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"Notification"',
        b'{"Type": ["Notification"]}',
        b'{"Type": "Notification"}',
        b'{"Type": "notification"}',
        b'{"id":"e-1","type":"interaction.created"}',
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{" + b" " * 2_000_000 + b"}",
        b'{"Type":"Notification","Message":"\\ud800"}',
    ],
    ids=short,
)
def test_a_body_that_is_no_message_of_sns_is_refused(body: bytes) -> None:
    host = Host()
    assert not verified(sns(host), body)
    assert host.asked == []
    with pytest.raises(MalformedEvent):
        unwrap(body)


def test_unwrapping_gives_the_event() -> None:
    assert unwrap(posted(sign({**NOTIFICATION, "Message": '{"text":"Grüße"}'}))) == SnsMessage(
        "Notification", TOPIC, NOTIFICATION["MessageId"], '{"text":"Grüße"}'.encode()
    )


@pytest.mark.parametrize("type_", ["SubscriptionConfirmation", "UnsubscribeConfirmation"])
def test_unwrapping_a_confirmation_gives_the_address_that_a_person_may_open(type_: str) -> None:
    message = unwrap(posted(sign({**CONFIRMATION, "Type": type_})))
    assert (message.type, message.subscribe_url) == (type_, CONFIRM_URL)


@pytest.mark.parametrize(
    "url",
    [
        CONFIRM_URL.replace("https", "http"),
        CONFIRM_URL.replace("us-west-2.amazonaws.com", "us-west-2.amazonaws.com.evil.com"),
        CONFIRM_URL.replace("us-west-2.amazonaws.com", "eu-west-1.amazonaws.com"),
        CONFIRM_URL.replace("sns.", "user@sns."),
        CONFIRM_URL.replace("Confirm", "Delete"),
        CONFIRM_URL + " and <script>",
        CONFIRM_URL + "\x1b[2J",
        CONFIRM_URL + "x" * 3000,
        "",
    ],
    ids=short,
)
def test_an_address_that_does_not_lead_to_the_sns_of_the_topic_is_left_out(url: str) -> None:
    assert unwrap(posted(sign({**CONFIRMATION, "SubscribeURL": url}))).subscribe_url == ""


def test_a_notification_brings_no_address_along_since_it_would_not_be_signed() -> None:
    assert unwrap(posted({**sign(NOTIFICATION), "SubscribeURL": CONFIRM_URL})).subscribe_url == ""
