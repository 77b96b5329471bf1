"""DynamoDB for tests: the emulator `ministack` on a free port of loopback, or a server that is given.

    server = DynamoServer(folder)            # or DynamoServer.given()
    server.start()
    url = server.url("orders")               # dynamodb://orders?region=…&endpoint=http://127.0.0.1:…

It was chosen because its conditional writes are atomic (tests/ledgers/dynamodb/test_emulator.py races them). What it
does otherwise than the service: two transactions never meet (no TransactionConflict), an index is never behind its
table, nothing is throttled, nobody is refused for a missing permission, and a kill forgets everything. Tests bring such
things about by hooks of the client.

A given server (SEMEL_TEST_DYNAMODB_URL, `dynamodb://any?region=…&endpoint=…`) must let its user create tables. It is
neither started nor stopped here, and credentials for it come by the usual AWS chain.
"""

from __future__ import annotations

from urllib.parse import urlencode

from tests.support.servers.emulator import Emulator


class DynamoServer(Emulator):
    kind = "DYNAMODB"
    services = "dynamodb"

    def url(self, table: str, **options: str) -> str:
        """The ledger's URL of a table, which need not be there yet."""
        endpoint = {} if self.endpoint is None else {"endpoint": self.endpoint}
        return f"dynamodb://{table}?{urlencode({'region': self.region, **endpoint, **options})}"
