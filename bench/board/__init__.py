"""The leaderboard: records to tables, pages and figures.

In: typed records. Out: rankings and overviews, and their forms as Markdown, terminal tables, CSV, SVG and a site.
rows.py makes rankings from records, ranking.py has every number of one, columns.py lists what tables show of it, and
overview.py has the numbers that need several tasks (with groups, ladder and pools). markdown, terminal, results, site,
figures and readme format these objects and compute nothing. submissions.py checks the records that others send,
archives.py reads those of `bench gpu`, reproduce.py gives the command of a run. files.py merges records from several
folders, says what is to be written and compares it with what is there. This room may use run, the shared modules,
models and tasks. It writes no file except a record that was sent in, with its weights; bench/commands writes the rest.
"""
