"""What was published, compared with what we measured.

In: records, reports and the board's rows. Out: a verdict for each published claim, and CLAIMS.md. published.py has the
claims and numbers, each with an id; verdicts.py says how each kind of claim is judged; evidence.py finds the runs that
speak to one; markdown.py writes the page. This room may use board, run and the shared modules, and writes no files.
"""
