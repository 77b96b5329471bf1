"""Ledger URLs: passwords are never shown, and errors have their line."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.settings.writing import loaded, problems, told
from tests.wording import lacks

from semel import Context, Event, Semel, keys, wiring
from semel.core.dead_letter_store import LedgerWithDeadLetterStore
from semel.values.errors import ConfigError
from semel.values.redaction import masked, without_secrets
from semel.values.secret import Secret

PASSWORD = "hunter2/and@more"
INLINE = '[[endpoints]]\nmode = "inline"\n'


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a:b@c.db?synchronous=normal", "sqlite:///a:b@c.db?synchronous=normal"),
        ("memory://", "memory://"),
        ("postgresql://db/semel?sslmode=require", "postgresql://db/semel?sslmode=require"),
        ("postgresql://anna@db/semel", "postgresql://anna@db/semel"),
        ("postgresql://anna:pa55@db:5432/semel?pool=3", "postgresql://anna:…@db:5432/semel?pool=3"),
        ("postgresql://anna:p@ss/w?rd@db/semel", "postgresql://anna:…@db/semel"),
        ("postgresql://db/semel?password=pa55&sslpassword=pa55", "postgresql://db/semel?password=…&sslpassword=…"),
        ("redis://:pa55@host:6379/0", "redis://:…@host:6379/0"),
        ("redis+sentinel://h/m?sentinel_password=pa55&pool=2", "redis+sentinel://h/m?sentinel_password=…&pool=2"),
        ("dynamodb://t?aws_secret_access_key=pa55&region=x", "dynamodb://t?aws_secret_access_key=…&region=x"),
        ("postgresql://db:5432/semel?password=p@55", "postgresql://db:5432/semel?password=…"),
        ("postgresql://db/semel?password=p;55&pool=3", "postgresql://db/semel?password=…&pool=3"),
        ("postgresql://db/semel?%70assword=pa55", "postgresql://db/semel?%70assword=…"),
        ("postgresql://a:1,b:2/semel?application_name=x@y", "postgresql://a:1,b:2/semel?application_name=x@y"),
        ("redis://anna:12345/and@host/0", "redis://anna:…@host/0"),
        ("anna:pa55@db", "anna:…@db"),
        ("postgresql://" + "x" * 500, "postgresql://" + "x" * 187 + "…"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert masked(url) == shown


@given(
    st.sampled_from(["postgresql", "redis", "rediss+cluster", "dynamodb", "mysql"]),
    st.text(min_size=4, max_size=20).filter(lambda text: text.isprintable() and not set(text) <= set("…")),
    st.booleans(),
    st.sampled_from(["{scheme}://anna:{password}@[::1]:9/7?x=1", "{scheme}://[::1]:9/7?x=1&password={password}"]),
)
def test_no_password_is_ever_shown(scheme: str, password: str, encoded: bool, form: str) -> None:
    """Whoever writes it raw has to change it, but not because everybody has seen it."""
    raw_in_query = "password=" in form and not encoded
    assume(not raw_in_query or not set(password) & set("&;@"))  # there it is not one password any more
    written = quote(password, safe="") if encoded else password
    url = form.format(scheme=scheme, password=written)
    assume(written not in url.replace(f"{written}@", "").replace(f"password={written}", ""))
    assert written not in masked(url)
    assert written not in without_secrets(f"cannot use {url!r}: {written} is wrong", url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:pa%2F55@h/0", "cannot use redis://:pa%2F55@h/0: pa/55 is wrong, pa%2F55 too"),
        ("postgresql://h/d?password=pa%2F55", "password=pa%2F55 and 'pa/55' and postgresql://h/d?password=pa%2F55"),
    ],
)
def test_errors_of_drivers_are_redacted(url: str, said: str) -> None:
    assert "55" not in without_secrets(said, url)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense://anna:hunter2@host",
        "anna:hunter2@host",
        "postgresql://anna:hunter2@host/semel?unknown=1",
        "postgresql://anna:hunter2@host/semel?pool=hunter2",
        "redis://anna:hunter2@host/0?strict=hunter2",
        "redis://anna:hunter2@host:hunter2/0",
        "redis+cluster://anna:hunter2@host/7",
        "redis+sentinel://host?sentinel_password=hunter2",
        "dynamodb://anna:hunter2@table",
        "dynamodb://table?region=x&secret=hunter2",
        "memory://anna:hunter2@host",
    ],
)
def test_an_invalid_url_is_reported_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Semel(url)
    (problem,) = problems(tmp_path, f'tenant = "a"\nledger = "{url}"\n')
    assert problem.line == 2
    for text in (str(raised.value), repr(raised.value), str(problem)):
        assert "hunter2" not in text
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None, "a traceback would show it"


@pytest.mark.parametrize("scheme", ["postgresql", "redis", "rediss+cluster", "redis+sentinel", "dynamodb", "sqlite"])
@pytest.mark.parametrize("between", ["#", "?", "/", "[", "]", "\u2100", "\udc80"])
def test_no_part_of_an_unencoded_password_is_reported(scheme: str, between: str) -> None:
    """The first half would be taken for a port; the standard library's own words repeat all of it."""
    with pytest.raises(ConfigError) as raised:
        Semel(f"{scheme}://anna:hunter2{between}more@host/0")
    assert "hunter2" not in str(raised.value).replace("sqlite://anna:hunter2", "")
    assert raised.value.__suppress_context__ or raised.value.__context__ is None, "a traceback would show it"


def test_an_unknown_scheme_is_reported_with_all_known_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        Semel("mysql://host/db")
    assert all(example in str(raised.value) for example in wiring.SCHEMES)


def test_every_known_scheme_opens_nothing_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for example in wiring.SCHEMES:
        assert wiring.open_ledger(example).traits.name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://host/semel", "asyncpg", "postgres"),
        ("rediss+cluster://host", "redis", "redis"),
        ("dynamodb://table?region=x", "aiobotocore", "aws"),
    ],
)
def test_a_missing_driver_is_reported_with_its_installation(
    url: str, driver: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigError, match=rf"{driver}.*pip install 'semel\[{extra}\]'"):
        Semel(url)
    (problem,) = told(tmp_path, f'ledger = "{url}"')
    assert problem.startswith("semel.toml:1: ledger")
    assert lacks(problem, f"{driver} pip install 'semel[{extra}]'") == []


def test_every_store_declares_what_it_promises() -> None:
    stores = wiring.every_store()
    names = [traits.name for traits in stores]
    assert len({(traits.name, traits.caveat) for traits in stores}) == len(stores)
    for kind in ("SQLite", "memory", "PostgreSQL", "Redis", "DynamoDB"):
        assert any(name.startswith(kind) for name in names)


# ------------------------------------------------------------------------------------------------------ references


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("env:URL", "postgresql://anna:hunter2@db/semel"),
        ("file:url", "postgresql://bert:hunter2@db/semel"),
        ("postgresql://anna:env:PASSWORD@db/semel?pool=2", "postgresql://anna:hunter2%2Fand%40more@db/semel?pool=2"),
        ("redis://:env:PASSWORD@db/0", "redis://:hunter2%2Fand%40more@db/0"),
        ("postgresql://anna:file:password@db/semel", "postgresql://anna:hunter2%2Fand%40more@db/semel"),
    ],
)
def test_a_url_or_its_password_may_be_a_reference(tmp_path: Path, written: str, url: str) -> None:
    (tmp_path / "url").write_text("postgresql://bert:hunter2@db/semel\n")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    environ = {"URL": "postgresql://anna:hunter2@db/semel", "PASSWORD": PASSWORD}
    settings = loaded(tmp_path, f'ledger = "{written}"', **environ)
    assert settings.ledger.reveal() == url
    assert settings.ledger.reference == written
    assert "hunter2" not in repr(settings)


def test_a_variable_that_a_url_references_is_not_a_setting(tmp_path: Path) -> None:
    written = 'ledger = "postgresql://anna:env:SEMEL_PASSWORD@db/semel"'
    assert loaded(tmp_path, written, SEMEL_PASSWORD="x").ledger.reveal() == "postgresql://anna:x@db/semel"


def test_a_variable_overrides_both_stores(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        'ledger = "memory://"\ndead_letters = "sqlite:///a.db"',
        SEMEL_LEDGER="redis://host",
        SEMEL_DEAD_LETTERS="env:LETTERS",
        LETTERS="sqlite:///b.db",
    )
    assert settings.dead_letters == Secret("sqlite:///b.db")
    assert settings.ledger.reveal() == "redis://host"
    assert settings.ledger.reference == "env:SEMEL_LEDGER", "it does not stand in the file"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('ledger = "env:NOT_THERE"', "1: ledger", "env:NOT_THERE variable"),
        ('ledger = "file:none"', "1: ledger", "file:none"),
        ('ledger = "redis://:env:NOT_THERE@h"', "1: ledger", "env:NOT_THERE variable"),
        ('ledger = "env:EMPTY"', "1: ledger", "env:EMPTY empty"),
        ('ledger = "env:WRONG"', "1: ledger", "env:WRONG URL sqlite:///"),
        ('ledger = ""', "1: ledger", "empty"),
        ('ledger = "postgresql://h/d?pol=3"', "1: ledger", "PostgreSQL option 'pol'"),
        ('ledger = "postgresql://h:99999/d"', "1: ledger", "PostgreSQL port 99999"),
        ('ledger = "postgresql://a,[::1]:0/d"', "1: ledger", "PostgreSQL port 0"),
        ('ledger = "redis://h/0?strict=x"', "1: ledger", "redis://h/0 strict=x number 0"),
        ('ledger = "dynamodb://t!"', "1: ledger", "'dynamodb://t!' dynamodb://table?region="),
        ('ledger = "sqlite:///x.db?sync=1"', "1: ledger", "'sqlite:///x.db?sync=1' option 'sync'"),
        (
            'ledger = "redis://h"\ndead_letters = "sqlite://x.db"',
            "2: dead_letters",
            "'sqlite://x.db' sqlite:///relative.db",
        ),
        ('ledger = "redis://h?x=1"\ndead_letters = "sqlite:///x.db"', "1: ledger", "redis://h option 'x'"),
        ('ledger = "redis://h"\ndead_letters = "redis://h"', "2: dead_letters", "Redis sqlite:///file.db"),
        ('ledger = "redis://h"\ndead_letters = "memory://"', "2: dead_letters", "memory"),
        ('ledger = "sqlite:///a.db"\ndead_letters = "sqlite:///b.db"', "2: dead_letters", "SQLite"),
        ('ledger = "postgresql://h/d"\ndead_letters = "sqlite:///b.db"', "2: dead_letters", "PostgreSQL"),
    ],
)
def test_a_wrong_store_url_is_reported_with_its_line(tmp_path: Path, text: str, place: str, words: str) -> None:
    (problem,) = told(tmp_path, text, WRONG="pa55word", EMPTY="")
    assert problem.startswith(f"semel.toml:{place}")
    assert lacks(problem, words) == [], problem
    assert "pa55word" not in problem


# ----------------------------------------------------------------------------------------------- what needs what


def test_a_ledger_gets_the_configured_dead_letter_store(tmp_path: Path) -> None:
    app = Semel("redis://host", dead_letters=f"sqlite:///{tmp_path}/letters.db")
    assert isinstance(app.ledger, LedgerWithDeadLetterStore)
    assert list(tmp_path.iterdir()) == [], "nothing is opened yet"


@pytest.mark.parametrize("url", ["redis://host", "memory://", "redis+cluster://host"])
def test_a_transaction_on_a_ledger_without_them_is_refused_with_those_that_have_them(url: str) -> None:
    with pytest.raises(ConfigError, match=r"SQLite.*PostgreSQL.*DynamoDB"):
        Semel(url).on("**", effect="transaction")


def test_a_sync_handler_cannot_await_its_transaction() -> None:
    app = Semel("postgresql://db/semel")

    def sync(event: Event, ctx: Context) -> None: ...

    async def right(event: Event, ctx: Context) -> None: ...

    with pytest.raises(ConfigError, match=r"'sync'.*PostgreSQL.*ctx\.tx.*async def"):
        app.on("**", effect="transaction")(sync)
    app.on("**", effect="transaction")(right)
    app.on("**", effect="retry")(sync)
    for url in ("sqlite:///semel.db", "dynamodb://table?region=eu-central-1"):
        Semel(url).on("**", effect="transaction")(sync)


@pytest.mark.parametrize(
    ("options", "refused"),
    [("", True), ("?together=other", True), ("?together=other,mine", False), ("?together=*", False)],
)
@pytest.mark.parametrize("how", ["order", "tiers"])
def test_keys_that_a_cluster_must_keep_together_are_named_in_its_url(options: str, refused: bool, how: str) -> None:
    app = Semel(f"redis+cluster://host{options}")
    asked = {
        "order": {"order": keys.latest("data.id", by="createdTime")},
        "tiers": {"key": keys.tiers(keys.delivery, keys.event)},
    }[how]

    async def mine(event: Event, ctx: Context) -> None: ...

    if refused:
        with pytest.raises(ConfigError, match="together=mine"):
            app.on("**", **asked)(mine)  # type: ignore[arg-type]
    else:
        app.on("**", **asked)(mine)  # type: ignore[arg-type]
    app.on("**", name="plain")(mine)
    Semel("redis://host").on("**", **asked)(mine)  # type: ignore[arg-type]
