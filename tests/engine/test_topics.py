"""Which events a handler is for."""

from __future__ import annotations

import pytest

from semel import ConfigError, Context, Event, Semel
from semel.core.routing import REMEMBERED_MAX
from semel.values.key import Pattern

CONCRETE = "v2.detail.events.conversation.f47ac10b-58cc-4372-a567-0e02b2c3d479.customer.end"
TEMPLATE = "v2.detail.events.conversation.{id}.customer.end"


def names(app: Semel, event: Event) -> list[str]:
    return [handler.name for handler in app._router.match(event)]


def app_with(*patterns: str) -> Semel:
    app = Semel("memory://")
    for pattern in patterns:

        @app.on(pattern, name=pattern)
        async def handle(event: Event, ctx: Context) -> None: ...

    return app


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (CONCRETE, True),
        (TEMPLATE, True),
        ("v2.detail.events.conversation.*.customer.end", True),
        ("v2.detail.events.conversation.{conversationId}.customer.end", True),
        ("v2.detail.events.**", True),
        ("**", True),
        ("v2.*.events.conversation.*.customer.*", True),
        ("v2.detail.events.conversation.*.customer", False),
        ("v2.detail.events.conversation.*", False),
        ("*", False),
        ("v2.detail.events.conversation.*.customer.end.**", False),
        ("v2.detail.events.conversation.another.customer.end", False),
        ("detail.events.**", False),
    ],
)
@pytest.mark.parametrize("road", ["eventbridge", "bare detail"])
def test_topic_and_template_are_matchable(pattern: str, matches: bool, road: str) -> None:
    event = Event(b"{}", TEMPLATE if road == "eventbridge" else CONCRETE, CONCRETE)
    app = app_with(pattern, "v2.other.**")
    for _ in range(2):  # the second answer is remembered
        assert names(app, event) == ([pattern] if matches else [])


def test_a_pattern_for_one_conversation_does_not_match_another_of_the_same_template() -> None:
    app = app_with(CONCRETE, "v2.detail.events.**")
    other = CONCRETE.replace("f47ac10b", "00000000")
    for _ in range(2):
        assert names(app, Event(b"{}", TEMPLATE, CONCRETE)) == [CONCRETE, "v2.detail.events.**"]
        assert names(app, Event(b"{}", TEMPLATE, other)) == ["v2.detail.events.**"]


def test_types_with_colons_are_one_segment_and_detail_types_match_too() -> None:
    app = app_with("conversation:call:updated", "Call Updated", "*")
    event = Event(b"{}", "conversation:call:updated", "Call Updated")
    assert names(app, event) == ["conversation:call:updated", "Call Updated", "*"]


def test_handlers_registered_later_are_found_too() -> None:
    app = app_with("a")
    assert names(app, Event(b"{}", "a")) == ["a"]
    app.on("*", name="later")(lambda event, ctx: None)
    assert names(app, Event(b"{}", "a")) == ["a", "later"]


def test_what_is_remembered_is_bounded() -> None:
    app = app_with("x.*")
    for number in range(REMEMBERED_MAX + 10):
        assert names(app, Event(b"{}", f"x.{number}")) == ["x.*"]
    assert len(app._router._decided) <= REMEMBERED_MAX


@pytest.mark.parametrize("text", ["", " a", "a..b", ".a", "a.", "a.b*", "**.a", "a.**.b"])
def test_a_pattern_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        Pattern(text)
