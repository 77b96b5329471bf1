"""`python -m bench.stores`: Semel on Redis, PostgreSQL and a Cluster, against what one would write by hand.

    plan.py         what is measured, what it is compared with, and what is aimed at
    rounds.py       one run: every scenario once in each round
    report.py       the table, the legend and the JSON
    on_redis.py     on_postgres.py     on_cluster.py     the scenarios of each store
    raw_redis.py    bare_sql.py     the floors: the least that two phases can cost
    loops.py        the peers: what people usually write, and aws-lambda-powertools

Peers are here and not in the package, because they are needed only for benchmarks.
"""
