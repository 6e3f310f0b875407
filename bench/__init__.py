"""The suite: one command, one config, one function, one record, one table."""

VERSION = "0.1.0"  # part of every run's id: change it when a change of code changes results
SAMPLES = 200  # rollouts a context, in a report
