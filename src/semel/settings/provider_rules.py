"""What a type cannot say of providers and channels: what their adapters think of them, and who sends what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from semel.ports import Provider
from semel.settings.problems import Fault, Path, did_you_mean, quoted
from semel.settings.schema import Callbacks, Settings
from semel.settings.schema import Provider as ProviderSettings
from semel.settings.urls import what_is_wrong
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.wiring import calls_of, provider

PROVES_QUERY = ("twilio", "header", "basic", "none")  # schemes after which the query of a URL may be believed

_ABOUT = re.compile(
    r"provider '[^']*'(?: \([^)]*\))?: (?P<what>(?:there is no option '(?P<unknown>[^']+)'|(?P<option>\w+)).*)",
    re.DOTALL,
)


_PLACE = re.compile(r"destination '[^']*': its url (?P<what>.*)", re.DOTALL)


def broken_provider_rules(settings: Settings) -> Iterator[Fault]:
    made: dict[str, Provider] = {}
    for name, said in settings.providers.items():
        try:
            made[name] = provider(said.kind, name, said.options)
        except ConfigError as error:
            yield _fault(str(error), ("providers", name))
    for name, said in settings.providers.items():
        callback = said.options.get("callback", "")
        if callback and (wrong := what_is_wrong(callback.partition("#")[0])):  # behind it, Twilio is told how to try
            yield Fault(("providers", name, "callback"), f"callback: {wrong}")
        if said.callbacks is not None:
            yield from _callbacks(said, said.callbacks, ("providers", name))
    if len(made) == len(settings.providers):  # else nobody knows what they can send
        yield from _channels(settings, made)


def _fault(said: str, at: Path) -> Fault:
    """An adapter names its option first: the line of that one is told."""
    if (of_url := _PLACE.fullmatch(said)) is not None:
        return Fault((*at, "url"), f"url: it {of_url['what']}")
    about = _ABOUT.fullmatch(said)
    if about is None:
        return Fault(at, said)
    if about["what"].startswith("there is no kind"):
        return Fault((*at, "kind"), f"kind: {about['what']}")
    option = about["unknown"] or about["option"]
    return Fault((*at, option) if option else at, about["what"])


def _callbacks(said: ProviderSettings, callbacks: Callbacks, at: Path) -> Iterator[Fault]:
    calls = calls_of(said.kind)
    if calls is None:
        yield Fault(
            (*at, "callbacks"), f"{said.kind} calls nobody back: leave out [{'.'.join(map(str, at))}.callbacks]"
        )
        return
    in_query = said.kind == "twilio" and "callback" in said.options
    if in_query and callbacks.verify is not None and callbacks.verify.scheme not in PROVES_QUERY:
        what = f"scheme: our id is in the query of its callbacks, and only {', '.join(PROVES_QUERY)} prove that"
        yield Fault((*at, "callbacks", "verify", "scheme"), f'{what}: use "{calls.scheme}"')


def _channels(settings: Settings, made: Mapping[str, Provider]) -> Iterator[Fault]:
    for channel in CHANNELS:
        able = [name for name, one in made.items() if channel in one.contract.channels]
        said: list[str] = getattr(settings.channels, channel)
        for index, name in enumerate(said):
            at = ("channels", channel, index)
            if name not in made:
                what = f"{channel}: there is no provider {quoted(name)}"
                yield Fault(at, what + (did_you_mean(name, made) or f"; add [providers.{name}]"), (("providers",),))
            elif name not in able:
                what = f"{channel}: provider {quoted(name)} sends {', '.join(made[name].contract.channels)}"
                yield Fault(at, f"{what}; if it does send {channel}, say so in its channels", (("providers", name),))
            elif name in said[:index]:
                yield Fault(at, f"{channel}: {quoted(name)} is there twice")
        if not said and len(able) > 1:
            names = ", ".join(map(quoted, able))
            what = f"{channel} can be sent by {names}: say which one does, and which one is asked after a refusal"
            yield Fault(("channels", channel), f"{what}: {channel} = [{names}] in [channels]", (("providers",),))
