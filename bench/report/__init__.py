"""What one trained model has learned, and how.

In: a record with its weights. Out: report.md with figures and CSV tables, and report.json for the ledger of claims.
report.py loads a run and writes the page; rollout.py lets a model generate; interventions.py changes what passes its
taps; seeds.py puts several reports together. Each file in diagnostics/ answers one question and says itself to which
tasks it applies. This room may use run, the shared modules, models and tasks. What
was published reaches it from its caller.
"""
