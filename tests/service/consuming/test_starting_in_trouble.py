"""What `semel run` does when a broker is away while it starts: webhooks are taken, and the broker is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.consuming.settings_of import APP, SLOW
from tests.service.running import service

from semel.cli.doctor import OUT_OF_REACH

AWAY = {
    "kafka": 'servers = "127.0.0.1:9"\ntopics = ["t"]\ngroup = "g"\ndead_letters = "d"\n',
    "sqs": 'queue = "http://127.0.0.1:9/000000000000/q"\nendpoint = "http://127.0.0.1:9"\nregion = "eu-central-1"\n'
    'dead_letters = "http://127.0.0.1:9/000000000000/d"\nvisibility = 60\n',
    "rabbitmq": 'url = "amqp://u:secret-word@127.0.0.1:9/"\nqueue = "q"\ndead_letters = "d"\n',
}
AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_EC2_METADATA_DISABLED": "true"}
ENDPOINT = '[[endpoints]]\npath = "/events"\n'


@pytest.mark.parametrize("kind", list(AWAY))
def test_a_broker_that_is_away_does_not_take_webhooks_along(tmp_path: Path, kind: str) -> None:
    text = f'[[sources]]\nkind = "{kind}"\nname = "events"\n{AWAY[kind]}{ENDPOINT}'
    with service(tmp_path, text, APP, env={**SLOW, **AWS}) as running:
        running.until(lambda: OUT_OF_REACH in running.text, "it does not say so")
        assert running.post("/events", b'{"id":"1","type":"interaction.created","data":{}}').status == 200
        assert running.get("/readyz").status == 200
        assert "secret-word" not in "\n".join(running.log)
        running.terminate()
        assert running.wait() == 0, running.text
