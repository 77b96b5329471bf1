"""`python -m bench.service`: the service under load, compared with the same server around an empty application.

report.py       the rounds, the aims and the table
scenarios.py    each scenario: one server and one load
hello.py        the server to compare with: it reads the body and answers 200
sender.py       the process that sends the load
processes.py    starts and ends servers and senders
"""
