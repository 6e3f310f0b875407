"""Many runs: order them, divide them among processes or a cluster, survive a crash.

In: configs and a plan. Out: for each config a finished record, its events and a line of progress. dispatch.py chooses
between local.py, which starts workers on this machine, and cluster.py, which uses Ray; perform.py is what happens to
one config in a worker; tune.py searches learning rates; grid.py makes configs from options. messages.py has what
workers report, lock.py keeps two commands apart, events.py and progress.py tell people. This room may use run and the
shared modules.
"""
