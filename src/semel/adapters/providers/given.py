"""What the settings give a provider: its options, checked, and what they make of its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from semel.values.errors import ConfigError
from semel.values.sending import Contract, Key

PLAIN = {  # options that are fields of the contract; all times are seconds
    "timeout": "timeout_s",
    "per_second": "per_second",
    "concurrency": "concurrency",
    "settle": "settle_s",
    "policy": "policy",
    "policy_after": "policy_after_s",
}


class Given(Struct, frozen=True):
    """The options of one provider, checked, and its contract with them."""

    contract: Contract
    options: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    def get(self, name: str, default: Any) -> Any:
        return self.options.get(name, default)

    def some(self, *names: str) -> dict[str, Any]:
        """Those that were given, with what every provider takes: the rest has the provider's own default."""
        return {
            "contract": self.contract,
            "allow": tuple(self.get("allow", ())),
            **{name: self.options[name] for name in names if name in self.options},
        }


def contract_of(known: Contract, name: str, options: Mapping[str, Any]) -> Contract:
    """What is known of a kind, with what a person knows better. Raises ConfigError."""
    contract = replace(known, name=name)
    contract = replace(contract, **{field: options[name] for name, field in PLAIN.items() if name in options})
    if "channels" in options:
        if strange := [channel for channel in options["channels"] if channel not in contract.channels]:
            raise ConfigError(f"provider {name!r}: channels: it sends {', '.join(contract.channels)}, not {strange[0]}")
        contract = replace(contract, channels=tuple(options["channels"]))
    for field in ("refusals", "retriable"):
        if field in options:
            contract = replace(contract, **{field: frozenset(options[field])})
    if "tenants" in options:
        contract = replace(contract, tenants=frozenset(options["tenants"]))
    if "senders" in options:
        own = [options["sender"]] if "sender" in options else []
        contract = replace(contract, senders=frozenset([*options["senders"], *own]))
    if both := contract.refusals & contract.retriable:
        raise ConfigError(f"provider {name!r}: {min(both)} is both in refusals and in retriable")
    if (window_s := options.get("key_window")) is None:
        return contract
    header, path = options.get("key_header", ""), options.get("key_path", "")
    if contract.key is not None:
        if window_s > contract.key.window_s:
            raise ConfigError(f"provider {name!r}: key_window: it honours a key for {contract.key.window_s:g} s")
        return replace(contract, key=replace(contract.key, window_s=window_s))
    if known.name == "http" and not (header or path):
        raise ConfigError(f"provider {name!r}: key_window needs key_header or key_path: where does the key go?")
    if not (header or path):
        path = "idempotencyKey"
    return replace(contract, key=Key(header=header, path=path, window_s=window_s))
