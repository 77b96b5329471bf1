"""What a URL of this ledger may say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from semel.ledgers.dynamodb.url import OPTIONS, DynamoAddress, parse
from semel.values.errors import ConfigError


def test_a_url_names_the_table_and_its_client_options() -> None:
    url = "dynamodb://my-table.1?region=eu-central-1&endpoint=http://127.0.0.1:8000&concurrency=3&margin_ms=250"
    assert parse(url) == DynamoAddress("my-table.1", "eu-central-1", "http://127.0.0.1:8000", 3, 250)
    assert parse("dynamodb://table") == DynamoAddress("table")


def test_an_unknown_option_is_refused_by_name_and_its_value_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="'secret_key'") as raised:
        parse("dynamodb://table?secret_key=hidden-words")
    assert all(option in str(raised.value) for option in OPTIONS)
    assert "hidden-words" not in str(raised.value)


@pytest.mark.parametrize("url", ["dynamodb://user:hidden-words@table", "dynamodb://hidden-words@table?region=x"])
def test_credentials_in_the_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="AWS") as raised:
        parse(url)
    assert "hidden-words" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dynamodb://", "table"),
        ("dynamodb://ab", "table"),
        ("dynamodb://table/path", "table"),
        ("dynamodb://tab le", "table"),
        ("dynamodb:///table", "table"),
        ("dynamodb://table?concurrency=0", "concurrency='0'"),
        ("dynamodb://table?concurrency=257", "256"),
        ("dynamodb://table?concurrency=٣", "concurrency="),
        ("dynamodb://table?margin_ms=-1", "margin_ms='-1'"),
        ("dynamodb://table?margin_ms=600001", "600000"),
        ("dynamodb://table?endpoint=ftp://x", "endpoint"),
        ("dynamodb://table?endpoint=http://a:b@host", "credentials"),
    ],
)
def test_invalid_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(url)


def test_the_driver_is_imported_when_it_is_used_and_its_absence_says_what_to_install() -> None:
    code = """
import asyncio, sys
from semel.ledgers.dynamodb import DynamoLedger
from semel.values.errors import ConfigError
assert "aiobotocore" not in sys.modules and "botocore" not in sys.modules
sys.modules["aiobotocore"] = sys.modules["aiobotocore.config"] = sys.modules["botocore.exceptions"] = None
ledger = DynamoLedger.from_url("dynamodb://table?region=eu-central-1")
try:
    asyncio.run(ledger.counts())
except ConfigError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "semel[aws]" in said
