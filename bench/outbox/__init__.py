"""`python -m bench.outbox`: the cost of sending a message, compared with a hand-written loop.

plan.py         the parts of a run, their sizes and their targets
rounds.py       one run: every scenario once in each round
report.py       the table, the legend and the JSON
sending.py      the relay, the hand-written loop and the bare client, sending to …
far_end.py      … a provider on a real socket that accepts every message
adding.py       a message in the caller's transaction
keeping.py      take and status queries with many finished messages
serving.py      the same status query over HTTP
on_sqlite.py    on_postgres.py    the parts that are specific to a store
"""
