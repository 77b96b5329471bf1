"""An app whose letters are kept elsewhere: it refuses every event until a file says that the customer is known."""

from __future__ import annotations

import os
from pathlib import Path

from semel import Context, Event, Reject, Semel

app = Semel(os.environ["LEDGER"], dead_letters=os.environ["LETTERS"], origin="test")


@app.on("**", name="to-crm")
def to_crm(event: Event, ctx: Context) -> dict[str, int]:
    if not Path(os.environ["KNOWN"]).exists():
        raise Reject("unknown customer")
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{event.id}\n")
    return {"ticket": 7}
