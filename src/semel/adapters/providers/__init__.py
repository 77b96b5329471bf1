"""Who sends messages. Each provider is one file: its contract as data, what it is told, and what its answers mean.

`posting` is what all that speak HTTP share, `auth` how they are told who asks, `saying` what a notification says in
their forms, `reading` how their callbacks are read. To add one, write a file with a class like its neighbours, its line
in `kinds`, its dialect in the simulator, and its line in the contract test.
"""
