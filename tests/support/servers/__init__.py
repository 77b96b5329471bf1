"""Real servers for tests: found on this machine or given by a URL, started on free loopback ports, and ended by whoever
started them. They can be killed, stopped, and started again on the same port with the data they had.

    SEMEL_TEST_REDIS_URL, SEMEL_TEST_POSTGRES_URL, SEMEL_TEST_DYNAMODB_URL,
    SEMEL_TEST_RABBITMQ_URL, SEMEL_TEST_KAFKA: use this server instead of starting one
"""
