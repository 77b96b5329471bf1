"""`python -m bench.sources`: the cost that Semel adds to each event from a queue.

plan.py         the parts of a run, their sizes and their targets
rounds.py       one run of the parts, interleaved
sqs.py          Semel's SQS source and a hand-written loop, on …
fake_sqs.py     … a queue in memory with the interface of an SQS client and a latency of a millisecond
kafka.py        Semel's Kafka source and the bare client, on librdkafka's mock cluster
"""
