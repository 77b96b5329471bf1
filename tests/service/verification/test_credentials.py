"""Static headers and HTTP Basic. Made outside of Python: `printf %s "$USER:$SECRET" | base64`; Aladdin's is the
example of RFC 7617."""

from __future__ import annotations

import pytest
from tests.service.verification.asking import short, verified

from semel.ports import Verifier
from semel.verifiers import shared_secret, verifier

KEY, NEXT_KEY = "k-1f3a5b", "k-77aa01"
ALADDIN = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
COLONS = "Basic ZXZlbnRicmlkZ2U6czNjcmV0OndpdGg6Y29sb25z"


def test_the_api_key_of_eventbridge_verifies_and_each_active_one_does() -> None:
    ours = verifier("header", secrets=[KEY, NEXT_KEY])
    assert verified(ours, b"{}", x_api_key=KEY)
    assert verified(ours, b"anything, nothing is signed", x_api_key=NEXT_KEY)
    assert not verified(verifier("header", secrets=[NEXT_KEY]), b"{}", x_api_key=KEY)


def test_the_header_may_have_another_name() -> None:
    ours = verifier("header", secrets=["Bearer t0ken"], header="Authorization")
    assert verified(ours, b"{}", authorization="Bearer t0ken")
    assert not verified(ours, b"{}", x_api_key="Bearer t0ken")
    assert not verified(ours, b"{}", authorization="bearer t0ken")


@pytest.mark.parametrize(
    "wrong",
    ["", KEY[:-1], KEY + "x", KEY.upper(), f"{KEY}, {KEY}", f" {KEY}", f"{KEY}\n", "k" * 100_000, b"\xff", b"\x00"],
    ids=short,
)
def test_any_other_value_is_refused(wrong: str | bytes) -> None:
    assert not verified(verifier("header", secrets=[KEY]), b"{}", x_api_key=wrong)


def test_a_missing_header_is_refused() -> None:
    assert not verified(verifier("header", secrets=[KEY]), b"{}")
    assert not verified(verifier("basic", secrets=["open sesame"], username="Aladdin"), b"{}")


def test_the_public_example_of_http_basic_verifies() -> None:
    assert verified(verifier("basic", secrets=["open sesame"], username="Aladdin"), b"{}", authorization=ALADDIN)


@pytest.mark.parametrize("scheme", ["basic", "BASIC", "bAsIc", "Basic "])
def test_the_word_basic_may_be_in_any_case(scheme: str) -> None:
    ours = verifier("basic", secrets=["open sesame"], username="Aladdin")
    assert verified(ours, b"{}", authorization=ALADDIN.replace("Basic", scheme))


def test_a_password_may_contain_colons_and_each_active_one_verifies() -> None:
    ours = verifier("basic", secrets=["new", "s3cret:with:colons"], username="eventbridge")
    assert verified(ours, b"{}", authorization=COLONS)
    assert verified(ours, b"{}", authorization="Basic ZXZlbnRicmlkZ2U6bmV3")
    assert not verified(verifier("basic", secrets=["new"], username="eventbridge"), b"{}", authorization=COLONS)


def test_the_user_has_to_be_the_right_one() -> None:
    assert not verified(verifier("basic", secrets=["open sesame"], username="Jafar"), b"{}", authorization=ALADDIN)
    # The same text "eventbridge:s3cret:with:colons", cut at another colon, can never be asked for.
    assert not verified(verifier("basic", secrets=["colons"], username="eventbridge"), b"{}", authorization=COLONS)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "Basic",
        "Basic ",
        "Basic =",
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ",  # without its padding
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZR==",  # decodes to the same
        f"{ALADDIN}=",
        f"{ALADDIN} ",
        f"{ALADDIN}, {ALADDIN}",
        f" {ALADDIN}",
        ALADDIN.replace(" ", "\t"),
        "Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
        "Basic Aladdin:open sesame",
        "Basic " + "A" * 1_000_000,
        b"Basic \xff\xff\xff\xff",
    ],
    ids=short,
)
def test_anything_else_is_refused_by_basic(wrong: str | bytes) -> None:
    assert not verified(verifier("basic", secrets=["open sesame"], username="Aladdin"), b"{}", authorization=wrong)


def test_beyond_ascii_credentials_are_utf_8() -> None:
    # printf %s 'test:123£' | base64, also an example of RFC 7617
    assert verified(verifier("basic", secrets=["123£"], username="test"), b"{}", authorization="Basic dGVzdDoxMjPCow==")


@pytest.mark.parametrize("ours", [verifier("header", secrets=[KEY]), verifier("genesys", secrets=[KEY])])
def test_a_verifier_does_not_show_its_secrets(ours: Verifier) -> None:
    assert KEY not in repr(ours)


@pytest.mark.parametrize("given", [KEY, NEXT_KEY, "neither"])
def test_every_secret_is_compared_and_its_length_does_not_show(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def counting(expected: bytes, shown: bytes) -> bool:
        compared.append((expected, shown))
        return expected == shown

    monkeypatch.setattr(shared_secret, "compare_digest", counting)
    ours = verifier("header", secrets=[KEY, NEXT_KEY, "a much longer third one"])
    assert verified(ours, b"{}", x_api_key=given) is (given != "neither")
    assert len({expected for expected, _ in compared}) == 3
    assert {len(side) for pair in compared for side in pair} == {32}
