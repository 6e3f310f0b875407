"""The words and marks of the tables, explained once: pages and site show these texts, docs/reading.md repeats them."""

from __future__ import annotations

UNRANKED, RECIPE_SEEDS, SHAKY, GUESSING, NOT_REACHED = "†", "°", "~", "-", "n/a"
MARKS = {
    UNRANKED: "not ranked: other settings than the preset's, recipe seeds, one seed in every row, or trained elsewhere",
    RECIPE_SEEDS: "recipe seeds (0 to 2), which were also used to choose the recipe, so the row is not ranked",
    SHAKY: "one seed, or seeds that form two groups or disagree on whether the task is held",
    GUESSING: "no better than guessing: the KL is not below the uniform predictor's",
    NOT_REACHED: "the task has no such length, or the model cannot read it",
}


def explain(*marks: str) -> str:
    """What these marks mean, in sentences."""
    return " ".join(f"{mark}: {MARKS[mark]}." for mark in marks)


GLOSSARY = {
    "posterior": "The exact distribution of the answer given what the model has read so far.",
    "MAE": "Mean of |H_model - H_Bayes| over sequences and positions: the entropy error. It ranks the "
    "rows, except where the exact answer is always certain: there the KL does.",
    "KL": "KL(Bayes || model). Entropy can be right for a wrong distribution; KL cannot.",
    "curve": "The entropies are averaged over sequences before the difference is taken, as in the paper's formula. "
    "Opposite errors cancel, so it never ranks.",
    "K": "The horizon: the number of scored steps of a sequence. Most models are trained at the smallest K.",
    "new": "The positions beyond the training horizon alone.",
    "rank": "One more than the number of rows whose interval lies below this row's. Rank 1 says that no row is shown "
    "to be better, not that the row is good.",
    "interval": "95 % interval over seeds, by Student's t on the logarithm of the error. One seed has none.",
    "p": "Paired sign-flip test against the ranked row above, on the seeds that both have.",
    **{mark: f"{text[0].upper()}{text[1:]}." for mark, text in MARKS.items()},
    "uniform": "The predictor that gives every class the same probability.",
    "best constant": "The fixed prediction with the least MAE. It is fitted to the evaluation data, so it is hard to "
    "beat on MAE.",
    "window W": "The exact filter that saw only the last W observations.",
    "memory": "The window whose filter has the same KL: the model used at least that many observations.",
    "supervision": "The training target: the exact posterior, or one draw from it (sampled).",
    "preset": "A named size and training recipe.",
    "state": "Bytes that a model carries from one position to the next.",
    "open": "A verdict on a primitive that MAE and KL, five seeds, and a run of five times the steps do not settle.",
    "primitive": "A kind of inference that some tasks isolate: accumulation, transport or binding.",
    "tuned": "Learning rate and block were searched for, on seeds that no table shows.",
    "self-reported": "Sent in by others and not verified yet.",
}
