"""`python -m bench.outbox`: what a message costs on its way out, against what one would write by hand.

plan.py         what a part is, how much is measured, what is aimed at
rounds.py       one run: every scenario once in each round
report.py       the table, the legend and the JSON
sending.py      the relay, the loop by hand and the bare client, to …
far_end.py      … a provider on a real socket, which accepts everything at once
adding.py       a message in the transaction of somebody else
keeping.py      taking and asking, with many messages that are over
serving.py      the same question, put to the running service
on_sqlite.py    on_postgres.py    what each store has of its own
"""
