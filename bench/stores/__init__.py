"""`python -m bench.stores`: Semel on Redis, PostgreSQL and Redis Cluster, compared with hand-written code.

    plan.py         the measurements, their comparisons and their targets
    rounds.py       one run: every scenario once in each round
    report.py       the table, the legend and the JSON
    on_redis.py     on_postgres.py     on_cluster.py     the scenarios of each store
    raw_redis.py    bare_sql.py     the floors: the least that two phases can cost
    loops.py        the peers: the usual hand-written loops, and aws-lambda-powertools

Peers are here and not in the package, because they are needed only for benchmarks.
"""
