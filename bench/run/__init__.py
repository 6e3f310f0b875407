"""One run: build, train, score, record.

In: a config. Out: a record and the weights, or a record that says why it failed. run.py is the sequence of steps;
train.py the loop; score.py and references.py the metrics; checkpoint.py, keeper.py and snapshots.py what lies on disk
meanwhile; meter.py and nvml.py time, memory and energy; contract.py what a model must promise; source.py the commit.
This room may use the shared modules, models and tasks, and knows nothing of other runs.
"""
