"""`semel notify resend|erase`: deliberate second messages, and erased customers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.notify.outboxes import (
    MAIL,
    NUMBER,
    REASON,
    SECRET,
    add,
    at_a_terminal,
    carry,
    document,
    fill,
    notification,
    notify,
    shown,
    state,
    url_of,
)
from tests.wording import lacks

from semel.values.delivery_state import Accepted, Refused, Unknown

# ----------------------------------------------------------------------------------------------------------- resend


def test_a_resend_is_a_new_generation_with_its_reason(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = carry(url, notification(), Accepted())
    ended = notify(url, "resend", id[:12], *REASON, "--yes")
    assert ended.code == 0
    assert ended.out.startswith("added")
    assert lacks(ended.out, "generation 2 relay") == []
    newest = document(url, "show", "--key", "order-1", "--reveal")
    assert (newest["generation"], newest["state"], newest["body"]) == (2, "pending", SECRET)
    for one in (id, newest["id"]):
        assert lacks(notify(url, "show", one).out, "anna carrier") == []


def test_the_same_resend_again_makes_no_third_message(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = carry(url, notification(), Accepted())
    first = document(url, "resend", id, *REASON, "--yes")
    again = document(url, "resend", id, *REASON, "--yes")
    assert (first["status"], again["status"], again["id"]) == ("added", "known", first["id"])
    assert lacks(notify(url, "resend", id, *REASON, "--yes").out, "known: generation 2") == []
    assert len(document(url, "list")) == 2


@pytest.mark.parametrize(("name", "resolvable"), [("pending", False), ("sending", False), ("uncertain", True)])
def test_an_unfinished_notification_is_not_resent(name: str, resolvable: bool, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = fill(url)[name]
    before = len(document(url, "list"))
    ended = notify(url, "resend", id, *REASON)
    assert ended.code == 1
    assert ended.out.startswith("refused: ")
    assert ("resolve" in ended.out) == resolvable
    assert len(document(url, "list")) == before


def test_a_resend_needs_confirmation_and_a_reason(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = carry(url, notification(), Accepted())
    ended = notify(url, "resend", id, *REASON)
    assert ended.code == 2
    assert lacks(ended.err, "shipping +49…5678 accepted --yes") == []
    assert len(document(url, "list")) == 1
    assert "--reason" in notify(url, "resend", id, "--yes").err


@pytest.mark.parametrize(("typed", "count"), [(b"y\n", 2), (b"n\n", 1)])
def test_the_command_asks_at_a_terminal(typed: bytes, count: int, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = carry(url, notification(), Accepted())
    err = at_a_terminal(typed, url, "resend", id, *REASON)
    assert "+49…5678" in err
    assert "?" in err
    assert len(document(url, "list")) == count


# ------------------------------------------------------------------------------------------------------------ erase


def test_a_customer_is_erased_and_the_same_call_is_known(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    sent = carry(url, notification("sent"), Accepted())
    failed = carry(url, notification("failed"), Refused(f"{NUMBER} is not valid", final=True))
    doubtful = carry(url, notification("doubtful"), Unknown("reset"))
    other = carry(url, notification("other", recipient=MAIL), Accepted())
    (waiting,) = add(url, notification("waiting"))
    foreseen = notify(url, "erase", "--to", NUMBER, "--dry-run")
    assert lacks(foreseen.out, "3 notifications +49…5678 1 cancelled") == []
    assert doubtful in foreseen.out
    assert not shown(url, sent).erased
    report = document(url, "erase", "--to", NUMBER, *REASON, "--yes")
    assert (report["erased"], report["cancelled"]) == (3, 1)
    assert report["staying"] == [{"id": doubtful, "state": "uncertain"}]
    assert [shown(url, id).erased for id in (sent, failed, waiting, doubtful, other)] == [True] * 3 + [False] * 2
    assert state(url, waiting) == "cancelled"
    told = notify(url, "show", failed, "--reveal").out
    assert "(erased)" in told
    assert NUMBER not in told
    assert document(url, "status", "--to", NUMBER)["status"] == "sent", "the guard and the question still know"
    refused = notify(url, "resend", sent, *REASON, "--yes")
    assert (refused.code, "erased" in refused.out) == (1, True)


def test_an_unfinished_notification_is_erased_when_it_is_finished(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = carry(url, notification(), Unknown("reset"))
    ended = notify(url, "erase", "--to", NUMBER, *REASON, "--yes")
    assert (ended.code, lacks(ended.out, f"{id} uncertain")) == (0, [])
    assert notify(url, "resolve", id, "--give-up", *REASON).code == 0
    assert document(url, "erase", "--to", NUMBER, *REASON, "--yes")["erased"] == 1
    again = notify(url, "erase", "--to", NUMBER, *REASON)
    assert (again.code, "+49…5678" in again.out) == (0, True)


def test_erasing_is_limited_to_one_tenant(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = [carry(url, notification(tenant=tenant), Accepted()) for tenant in ("acme", "")]
    assert document(url, "erase", "--to", NUMBER, "--tenant", "acme", *REASON, "--yes")["erased"] == 1
    assert [shown(url, id).erased for id in ids] == [True, False]


def test_erasing_needs_confirmation_and_a_reason(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    carry(url, notification("sent"), Accepted())
    (id,) = add(url, notification())
    ended = notify(url, "erase", "--to", NUMBER, *REASON)
    assert ended.code == 2
    assert lacks(ended.err, "2 notifications 1 cancelled --yes") == []
    assert "--reason" in notify(url, "erase", "--to", NUMBER, "--yes").err
    assert state(url, id) == "pending"
