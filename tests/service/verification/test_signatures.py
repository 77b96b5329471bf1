"""HMAC over the body: Genesys Open Messaging (base64) and GitHub's way (hex).

The expected signatures were made outside of Python:
    printf %s "$BODY" | openssl dgst -sha256 -hmac "$SECRET" -binary | base64        (without -binary: hex)
Two more are public: GitHub's documentation on validating deliveries, and test case 2 of RFC 4231.
"""

from __future__ import annotations

import pytest
from tests.service.verification.asking import altered, short, verified

from semel.verifiers import shared_secret, verifier

OLD, NEW = "open-messaging-secret-1", "open-messaging-secret-2"
BODY = (
    '{"id":"e-1","channel":{"messageId":"m-1","to":{"id":"a"},"from":{"id":"b"}},"type":"Text","text":"Grüße"}'.encode()
)
BASE64 = {
    OLD: "sha256=jeY3Hpdc7bWU0IJX0AVRmPLcY1+t7u8XF2nMjsQbduw=",
    NEW: "sha256=V4YyfwGuQScjKu6/6B/jFbFWKuUx/qXCUAbQvYE0mlk=",
}
HEX = {
    OLD: "sha256=8de6371e975cedb594d08257d0055198f2dc635fadeeef171769cc8ec41b76ec",
    NEW: "sha256=5786327f01ae4127232aeebfe81fe315b1562ae531fea5c25006d0bd81349a59",
}
SCHEMES = {"genesys": BASE64, "hmac-hex": HEX}
OTHER_SCHEMES = {"genesys": HEX, "hmac-hex": BASE64}

both = pytest.mark.parametrize("scheme", list(SCHEMES))


@both
def test_the_senders_signature_verifies(scheme: str) -> None:
    assert verified(verifier(scheme, secrets=[OLD]), BODY, x_hub_signature_256=SCHEMES[scheme][OLD])


def test_githubs_public_example_verifies() -> None:
    github = verifier("hmac-hex", secrets=["It's a Secret to Everybody"])
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert verified(github, b"Hello, World!", x_hub_signature_256=signature)


def test_the_public_example_of_rfc_4231_verifies_in_both_alphabets() -> None:
    body = b"what do ya want for nothing?"
    in_hex = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    in_base64 = "sha256=W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM="
    assert verified(verifier("hmac-hex", secrets=["Jefe"]), body, x_hub_signature_256=in_hex)
    assert verified(verifier("genesys", secrets=["Jefe"]), body, x_hub_signature_256=in_base64)


@both
def test_the_right_digest_in_the_other_alphabet_is_refused(scheme: str) -> None:
    assert not verified(verifier(scheme, secrets=[OLD]), BODY, x_hub_signature_256=OTHER_SCHEMES[scheme][OLD])


@both
def test_each_active_secret_verifies_and_a_removed_one_does_not(scheme: str) -> None:
    during, after = verifier(scheme, secrets=[OLD, NEW]), verifier(scheme, secrets=[NEW])
    for secret in (OLD, NEW):
        assert verified(during, BODY, x_hub_signature_256=SCHEMES[scheme][secret])
    assert not verified(after, BODY, x_hub_signature_256=SCHEMES[scheme][OLD])


@both
def test_a_body_that_was_altered_is_refused(scheme: str) -> None:
    ours = verifier(scheme, secrets=[OLD])
    assert not any(verified(ours, body, x_hub_signature_256=SCHEMES[scheme][OLD]) for body in altered(BODY))


@both
def test_a_signature_that_was_altered_is_refused(scheme: str) -> None:
    ours = verifier(scheme, secrets=[OLD])
    value = SCHEMES[scheme][OLD].encode()
    prefix = len(b"sha256=")
    for at in range(prefix, len(value) - 1):
        other = value[:at] + (b"1" if value[at : at + 1] != b"1" else b"0") + value[at + 1 :]
        assert not verified(ours, BODY, x_hub_signature_256=other)


@both
@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "sha256=",
        "{}, {}",  # the header stood twice
        "{} ",
        " {}",
        "{}\n",
        "{}\x00",
        "SHA256={bare}",
        "sha1={bare}",
        "sha256=sha256={bare}",
        "sha512={bare}",
        "{bare}",
        "sha256 = {bare}",
        '"{}"',
        "{}" + "=" * 5000,
        "sha256=" + "A" * 1_000_000,
        b"sha256=" + b"\xff" * 64,
        b"sha256=" + "８".encode() * 64,
        b"\xff\xfe",
    ],
    ids=short,
)
def test_anything_else_in_the_header_is_refused(scheme: str, wrong: str | bytes) -> None:
    right = SCHEMES[scheme][OLD]
    if isinstance(wrong, str):
        wrong = wrong.replace("{}", right).replace("{bare}", right.removeprefix("sha256="))
    assert not verified(verifier(scheme, secrets=[OLD]), BODY, x_hub_signature_256=wrong)


@both
def test_a_missing_header_is_refused(scheme: str) -> None:
    assert not verified(verifier(scheme, secrets=[OLD]), BODY)
    assert not verified(verifier(scheme, secrets=[OLD]), BODY, x_hub_signature=SCHEMES[scheme][OLD])


def test_base64_has_one_spelling_only() -> None:
    """The last letter carries two bits that say nothing: x, y and z decode to the same digest as w."""
    assert BASE64[OLD].endswith("duw=")
    ours = verifier("genesys", secrets=[OLD])
    assert verified(ours, BODY, x_hub_signature_256=BASE64[OLD])
    for other in "xyz":
        assert not verified(ours, BODY, x_hub_signature_256=BASE64[OLD].replace("duw=", f"du{other}="))


def test_hex_may_be_in_either_case() -> None:
    digest = HEX[OLD].removeprefix("sha256=").upper()
    assert verified(verifier("hmac-hex", secrets=[OLD]), BODY, x_hub_signature_256=f"sha256={digest}")


def test_a_header_of_another_name_may_leave_out_the_prefix_and_the_usual_one_may_not() -> None:
    own = verifier("hmac-hex", secrets=[OLD], header="X-Acme-Signature")
    usual = verifier("hmac-hex", secrets=[OLD], header="X-Hub-Signature-256")
    bare = HEX[OLD].removeprefix("sha256=")
    assert verified(own, BODY, x_acme_signature=bare)
    assert verified(own, BODY, x_acme_signature=HEX[OLD])
    assert not verified(own, BODY, x_hub_signature_256=HEX[OLD])
    assert verified(usual, BODY, x_hub_signature_256=HEX[OLD])
    assert not verified(usual, BODY, x_hub_signature_256=bare)


@both
@pytest.mark.parametrize("signer", [OLD, NEW, "nobody"])
def test_every_secret_is_compared_whichever_one_matches(
    scheme: str, signer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def counting(expected: bytes, given: bytes) -> bool:
        compared.append(expected)
        return expected == given

    monkeypatch.setattr(shared_secret, "compare_digest", counting)
    value = SCHEMES[scheme].get(signer, SCHEMES[scheme][OLD].replace("c", "d"))
    answer = verified(verifier(scheme, secrets=[OLD, NEW, "a third one"]), BODY, x_hub_signature_256=value)
    assert answer is (signer in SCHEMES[scheme])
    assert len(set(compared)) == 3
