"""Who sends messages. Each provider is one file: its contract as data, what it is told, and what its answers mean.

`posting` is what all that speak HTTP share, `auth` how they are told who asks. To add one, write a file with a class
like its neighbours, and add its line to the contract test.
"""
