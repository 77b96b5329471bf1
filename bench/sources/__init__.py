"""`python -m bench.sources`: what Semel adds to each event that comes from a queue.

fake_sqs.py     a queue in memory that speaks the interface of an SQS client, a millisecond away
sqs.py          Semel's source on it, against the loop that one would write by hand
"""
