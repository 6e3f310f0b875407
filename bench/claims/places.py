"""Where each published number stands in its source: by the beginning of a claim's id, the longest that fits.

Tables and sections are named as the source names them; of the authors' repository, the file as of commit 670c6d6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

PLACES: Mapping[str, str] = {
    "v1": "abstract and quantitative results",
    "v1-ffn": "mechanistic analysis, stage 3",
    "v1-belief": "abstract",
    "v1-hmm-top-off": "ablation",
    "v1-every-layer": "ablation",
    "v1-no-discontinuity": "generalization beyond the training horizon",
    "v1-frame-head": "mechanistic analysis, stage 1",
    "v1-alignment": "mechanistic analysis, stage 2",
    "v1-eliminated": "mechanistic analysis, stage 2",
    "v1-entropy-axis": "mechanistic analysis, stage 3",
    "v1-attention-first": "frame-precision dissociation",
    "v3": "results of version 3",
    "v3-orthogonal-keys": "layer-0 keys, version 3",
    "v3-clusters": "geometry of Mamba, version 3",
    "readme": "README.md, table of results",
    "repository": "logs of the MLP's training",
    "guide": "REPRODUCE.md, commands and expected results",
    "july-bijection": "experiments/jlens, the dense retrain and note/main.tex",
    "july-recurrence": "experiments/construction_boundary/README.md, table of results",
    "jlens": "experiments/jlens/RESULTS.md",
    "tracking": "state tracking on S5",
    "paper2": "experiments of the paper",
    "paper3": "ablation of the entropy axis",
    "orders": "study of order-k chains",
    "orders-diversity": "task diversity",
    "lpe-gap": "section 4, table 3",
    "lpe-correlation": "section 4, table 3",
    "lpe-mae": "section 4, table 3",
    "lpe-bands": "section 4, pure contexts and figure 3",
    "lpe-loss": "section 4, table 3 and the text below",
    "lpe-agreement": "section 4, table 3 and pure contexts",
    "lpe-": "section 5, table 4",
    "lpe-lowprob": "section 6, table 5",
    "v1-error": "quantitative results",
    "study": "notes on predictions and the residual stream",
}


class Published(NamedTuple):
    """A number that reports show beside their own."""

    id: str
    value: tuple[float, ...]
    source: str
    place: str


def place_of(id: str) -> str:
    """Empty for an id that is not of these sources."""
    fitting = [prefix for prefix in PLACES if id.startswith(prefix)]
    return PLACES[max(fitting, key=len)] if fitting else ""


def name_numbers(
    numbers: Mapping[str, Mapping[str, tuple[float, ...]]], sources: Mapping[str, str]
) -> Sequence[Published]:
    """Every number of the reports' tables, with its id, source and place."""
    found = []
    for table, rows in numbers.items():
        for row, value in rows.items():
            id = f"{sources[table]}-{table}-{row}"
            found.append(Published(id, value, sources[table], place_of(id)))
    return found
