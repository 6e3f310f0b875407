"""python -m bench: the same as bench."""

import sys

from bench.cli import main

sys.exit(main())
