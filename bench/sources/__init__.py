"""`python -m bench.sources`: what Semel adds to each event that comes from a queue.

plan.py         what a part is, how much is measured, what is aimed at
rounds.py       one run of the parts, interleaved
sqs.py          Semel's SQS source and the loop by hand, on …
fake_sqs.py     … a queue in memory that speaks the interface of an SQS client, a millisecond away
kafka.py        Semel's Kafka source and the bare client, on librdkafka's mock cluster
"""
