"""What was published: sources, numbers and claims, each with an id. How they are judged is in verdicts.py.

NUMBERS are those that reports show beside their own, by the report's table and row. STATEMENTS are about how a model
works: bench/report/diagnostics/claims.py tests each on one run, under the same id. CLAIMS is the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from statistics import mean
from typing import NamedTuple

from bench.claims.dynamics import FewerSteps
from bench.claims.generalisation import Diversity, HeldOut
from bench.claims.mechanisms import Mechanism, ReportStatement, SeedStatement
from bench.claims.verdicts import (
    Claim,
    Contrast,
    Cost,
    Error,
    Order,
    Primitives,
    ReportNumber,
    Unmeasured,
)
from bench.stats import SLACK

V1, V3, README, REPOSITORY, GUIDE, LPE, STUDY = "v1", "v3", "readme", "repository", "guide", "lpe", "study"
JULY, ORDERS, PAPER2, PAPER3, TRACKING = "july", "orders", "paper2", "paper3", "tracking"
PAPER = "Aggarwal, Dalal and Misra, *The Bayesian Geometry of Transformer Attention*, https://arxiv.org/abs/2512.22471"
CODE = "https://github.com/vishalmisra/bayesian-wind-tunnel"


class Source(NamedTuple):
    name: str
    about: str


SOURCES: Mapping[str, Source] = {
    V1: Source("arXiv:2512.22471v1", f"{PAPER}, first version; later versions have other numbers."),
    V3: Source("arXiv:2512.22471v3 and after", f"{PAPER}, third version and the papers that followed."),
    README: Source("the authors' README", f"README of {CODE}."),
    REPOSITORY: Source("the authors' repository", f"Logs of {CODE}."),
    GUIDE: Source("the authors' REPRODUCE.md and README", f"REPRODUCE.md and README of {CODE}."),
    JULY: Source("the authors' repository, July 2026", f"{CODE}, commit 670c6d6: notes, logs and released tasks."),
    PAPER2: Source("arXiv:2512.22473", "The second paper of the series: how gradients shape attention and values."),
    PAPER3: Source("arXiv:2512.23752", "The third paper of the series: trained language models."),
    ORDERS: Source("icr, order-k chains", "https://github.com/vinayakpathak/icr: the study behind the LPE Report."),
    TRACKING: Source("arXiv:2404.08819", "Merrill, Petty and Sabharwal 2024 on state tracking, and what followed it."),
    LPE: Source(
        "Bernoulli Transformer LPE Report",
        "Report of an automated run of 18 February 2026, without an address that we know. All its numbers of "
        "posterior samples are of one run and the same thirty contexts: several views of one thing.",
    ),
    STUDY: Source(
        "Study of Beta-Bernoulli Transformers",
        "Without an address that we know; preliminary in its own words.",
    ),
}

# by the report's table and the name of its row
NUMBERS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "error": {"bijection": (0.003,), "hmm": (7.5e-5,)},  # of the transformer at K = 20; hmm: of the averaged curve
    "loss": {
        "model NLL (nats)": (0.520968,),
        "Bayes NLL (nats)": (0.516166,),
        "gap (%)": (0.93,),
        "exact expected Bayes NLL (nats)": (0.50850,),
        "Bayes NLL over seeds, mean": (0.5088,),
        "Bayes NLL over seeds, standard deviation": (0.0085,),
    },
    "agreement": {
        "Pearson r": (0.9958,),
        "MAE": (0.00954,),
        "pure contexts (%)": (3.77,),
        "model's P(1) after zeros alone, mean": (0.0339,),
        "model's P(1) after ones alone, mean": (0.9667,),
    },
    "posterior_metrics": {  # table 4: mean, median, p90, p95, max, and the perfect match
        "W1": (0.0164, 0.0148, 0.0270, 0.0297, 0.0331, 0.0048),
        "KS": (0.1764, 0.1645, 0.2428, 0.3545, 0.5334, 0.0590),
        "CvM-int": (0.00221, 0.00161, 0.00464, 0.00524, 0.00812, 0.00015),
        "PIT-KS": (0.1794, 0.1677, 0.2459, 0.3602, 0.5403, 0.0604),
        "PIT-CvM": (3.4308, 2.2047, 5.4743, 10.9525, 22.5864, 0.1657),
        "quantile RMSE": (0.0176, 0.0166, 0.0279, 0.0293, 0.0304, 0.0060),
        "coverage MAE": (0.0445, 0.0412, 0.0841, 0.1012, 0.1188, 0.0199),
    },
    "lowprob": {"p50": (0.154, 1307105.5), "p90": (1.423, 1055461232.9), "p95": (2.050, 2631950303.2)},
}

NUMBER_SOURCES = {table: V1 if table == "error" else LPE for table in NUMBERS}

# settings of the LPE report's model, by the names of our reports' tables
LPE_SETTINGS: Mapping[str, str] = {
    "layers": "1", "width": "16", "heads": "1", "feed-forward width": "16", "positions": "none",
    "parameters": "1,794", "normalisation": "before each branch",
    "supervision": "sampled", "bits in a sequence": "1,024", "batch": "64", "optimizer": "adamw",
    "weight decay": "0.01", "learning rate": "0.0003", "warm-up steps": "400", "gradient clipping": "1.0",
    "steps": "4,000",
}  # fmt: skip

# what is said of how a model works, and where
STATEMENTS: Mapping[str, tuple[str, str]] = {
    "calibrated": ("The transformer is calibrated to thousandths of a bit", "results"),
    "no-discontinuity": ("It goes on beyond the training length without discontinuity", "results"),
    "every-layer": ("Every layer is needed", "ablation"),
    "frame-head": ("Layer 0 has one hypothesis-frame head", "stage 1"),
    "orthogonal-keys": ("Layer-0 keys form an orthogonal frame", "stage 1; version 3: 0.052, random 0.082"),
    "alignment": ("Queries align with feasible hypotheses, more so with depth", "stage 2"),
    "eliminated": ("Eliminated hypotheses receive next to no attention", "stage 2"),
    "manifold": ("Late representations lie on a low-dimensional manifold", "stage 3; REPRODUCE.md: PC1 > 80 %"),
    "entropy-axis": ("That manifold is parameterised by posterior entropy", "stage 3"),
    "belief": ("The residual stream holds the belief", "abstract"),
    "attention-first": ("Attention settles before values do", "frame-precision dissociation"),
    "top-attention": (
        "Without attention in the top two layers it fits K = 20 and collapses at K = 50",
        "ablation: 0.0016, then 1.79",
    ),
    "clusters": ("A recurrent model's last layer forms one cluster for each hidden state", "version 3"),
}

NINETEEN = mean(log2(20 / (21 - k)) for k in range(1, 20))
UNIFORM = (
    "The uniform predictor scores {uniform}: the published number is worse than guessing. The authors' only MLP reads "
    "one position at a time, as mlp-pointwise does; ours that reads the whole prefix is another architecture"
)
POINTWISE = (
    f"The uniform predictor scores {NINETEEN:.4g} on these 19 positions: an MLP that reads one position at a time, as "
    "the authors' does, cannot do better. One that reads the whole prefix is another architecture"
)
CURVE = (
    "The published metric averages entropies over sequences first: a predictor that reads nothing scores {curve} on "
    "it, and errors as large as ours leave about {chance} by chance, without any bias"
)
DILUTED = (
    f"Twenty near-perfect positions dilute the published mean; the new positions alone are near {0.0288 * 50 / 30:.2g}"
)
SHORTER = "Ours has {ours}, and has seen fewer sequences"
SMALLER = "Ours has {ours}; the authors' command trains a model of the paper preset's size for 100,000 steps"
COLLAPSED = (
    "1.79 is the mean of H_Bayes: zero entropy everywhere. A model that fits the training length cannot be that far "
    "off over all positions, so those beyond it are compared"
)
LEARNED = (
    "The authors' released code learns a vector for each position, and none beyond the training length is trained; "
    "ours has slopes of distance"
)
ABSOLUTE = Contrast(
    "positions", "sinusoidal", ". Ours with absolute positions (sinusoidal) has {other}, with slopes {usual} ({where})"
)
UPDATE = (
    "Our test: a model of equal size that was trained without them should be worse. It cannot show what they do in a "
    "model that has them"
)
LAYERS = "; the authors' REPRODUCE.md expects that a layer's removal costs less than 10 % of accuracy"
HEADS = "; the authors' REPRODUCE.md expects that most heads cost less than 5 % of accuracy"

DRAWS = "sampled"
LPE_MODEL = ("bernoulli", "transformer", "bernoulli-report")
NARROW = ("bernoulli", "transformer", "bernoulli-bottleneck")

OWN_TASK = (
    "On the task of the released code. The uniform predictor scores {uniform} there, the best constant {constant}"
)

ERRORS: tuple[Claim, ...] = (
    Error("v1-bijection-transformer", "transformer on bijection, K = 20", V1, NUMBERS["error"]["bijection"][0],
          "bijection", "transformer", supervision=DRAWS, shorter=SMALLER),
    Error("v1-bijection-mlp", "an MLP of equal size fails on bijection", V1, 1.85, "bijection", "mlp-pointwise",
          failure=True, supervision=DRAWS, why=UNIFORM, shorter=f". {SMALLER}"),
    Error("v1-hmm-transformer", "transformer on hmm, K = 20, curve", V1, NUMBERS["error"]["hmm"][0],
          "hmm", "transformer", "entropy_curve_mae", why=CURVE, shorter=f". {SMALLER}"),
    Error("v1-hmm-transformer-30", "transformer on hmm, K = 30, curve", V1, 0.012, "hmm", "transformer",
          "entropy_curve_mae", 30, why=LEARNED, contrast=ABSOLUTE),
    Error("v1-hmm-transformer-50", "transformer on hmm, K = 50, curve", V1, 0.0288, "hmm", "transformer",
          "entropy_curve_mae", 50, why=DILUTED),
    Error("v1-hmm-mlp", "an MLP fails on hmm-tokens", V1, 0.409, "hmm-tokens", "mlp", horizon=None, failure=True,
          why=OWN_TASK, shorter=f". {SMALLER}"),
    Error("v1-hmm-top-off", "attention off in the top two layers fits hmm at K = 20, curve", V1, 1.57e-3, "hmm",
          "transformer-no-attn-top2", "entropy_curve_mae", shorter=SMALLER),
    Error("v1-hmm-top-off-50", "and collapses at K = 50 on hmm-tokens, curve of the new positions", V1, 1.79,
          "hmm-tokens", "transformer-no-attn-top2", "entropy_curve_mae", 50, "post", failure=True, why=COLLAPSED,
          shorter=f". {SMALLER}"),
    Order("v3-hmm-order", "Mamba is ahead of the transformer on hmm-tokens", V3, "0.024, 0.049", "hmm-tokens", "mamba2",
          "transformer"),
    Error("readme-bijection-transformer", "transformer on bijection, K = 20", README, 0.007, "bijection",
          "transformer", supervision=DRAWS, shorter=SMALLER),
    Error("readme-bijection-lstm", "LSTM on bijection, K = 20", README, 0.009, "bijection", "lstm",
          supervision=DRAWS, shorter=SMALLER),
    Error("readme-bijection-mamba", "Mamba on bijection, K = 20", README, 0.010, "bijection", "mamba2",
          supervision=DRAWS, shorter=SMALLER),
    Error("repository-bijection-mlp", "an MLP fails on bijection, rerun", REPOSITORY, 1.107, "bijection",
          "mlp-pointwise", first=19, failure=True, why=POINTWISE),
    Cost("guide-bijection-cost", f"the transformer's training on bijection (to within {SLACK:g} times 0.007 bits)",
         GUIDE, "100,000 steps of 128, some 2 h on a GPU", 100_000 * 128, 0.007, "bijection", "transformer", DRAWS),
    Cost("guide-hmm-cost", f"the transformer's training on hmm-tokens (to within {SLACK:g} times the 0.049 bits of v3)",
         JULY, "50 epochs of 10,000 to 50,000 sequences", 50 * 10_000, 0.049, "hmm-tokens", "transformer"),
)  # fmt: skip

OWN_RECALL = (
    "On the authors' setting: 64 pairs, 256 keys, 3 queries of stored keys. Ours is one minus the probability of the "
    "right value, over the uniform predictor's"
)
CHAIN_LENGTH = "On sequences of the source's length, 100 * 2^k bits; those of our other presets show less of the law"
OWN_TASKS: tuple[Claim, ...] = (
    Error("july-bijection-transformer", "transformer on bijection, 50,000 steps of 256 on draws", JULY, 0.00078,
          "bijection", "transformer", supervision=DRAWS, shorter=SHORTER, sequences=50_000 * 256),
    Error("july-bijection-transformer-15000", "transformer on bijection, 15,000 steps of 256 on draws", JULY, 0.0056,
          "bijection", "transformer", supervision=DRAWS, shorter=SHORTER, sequences=15_000 * 256),
    Error("july-bijection-lstm", "LSTM on bijection, on draws", JULY, 0.009, "bijection", "lstm", supervision=DRAWS,
          shorter=SHORTER, sequences=50_000 * 256),
    Error("july-bijection-mamba", "Mamba on bijection, on draws", JULY, 0.013, "bijection", "mamba2",
          supervision=DRAWS, shorter=SHORTER, sequences=50_000 * 256),
    *(
        Error(f"v3-hmm-tokens-{arch}", claim, V3, error, "hmm-tokens", arch, horizon=None, failure=failure,
              why=OWN_TASK, shorter=f". {SHORTER}")
        for arch, claim, error, failure in (
            ("transformer", "transformer on hmm-tokens", 0.049, False),
            ("mamba2", "Mamba on hmm-tokens", 0.024, False),
            ("lstm", "LSTM fails on hmm-tokens", 0.411, True),
            ("mlp", "an MLP fails on hmm-tokens", 0.40, True),
        )
    ),
    *(
        Error(f"v3-recall-64-{arch}", claim, V3, error, "recall-64", arch, "tv", None, failure=failure,
              over="uniform", perfect=not failure, words=words, why=OWN_RECALL,
              shorter=f". {SHORTER}")
        for arch, claim, error, words, failure in (
            ("transformer", "transformer recalls 64 pairs, accuracy", 0.005, "100 %", False),
            ("mamba2", "Mamba recalls 64 pairs, accuracy", 0.022, "97.8 %", False),
            ("lstm", "LSTM fails to recall 64 pairs, accuracy", 0.995, "0.5 %", True),
        )
    ),
)  # fmt: skip

RECURRENCES: tuple[Claim, ...] = (
    *(
        Error(f"july-recurrence-{id}", claim, JULY, error, "recurrence", "transformer", horizon=None, part=part,
              params=params, failure=failure, supervision=DRAWS, shorter=SHORTER, sequences=150_000 * 64)
        for id, claim, error, part, failure, params in (
            ("integer", "program or noise, integer tokens", 0.014, "all", False, {}),
            ("modulus-31", "the same with p = 31", 0.014, "all", False, {"modulus": 31}),
            ("opaque", "opaque tokens are not learned", 0.83, "all", True, {"opaque": True}),
            ("horizon-5", "beyond a loss horizon of 5 the computation dies", 1.63, "beyond", True, {"loss_horizon": 5}),
            ("horizon-3", "beyond a loss horizon of 3 the computation dies", 1.95, "beyond", True, {"loss_horizon": 3}),
            ("density-1", "1 % of the loss beyond the horizon repairs little", 0.54, "beyond", True,
             {"loss_horizon": 5, "loss_density": 0.01}),
            ("density-5", "5 % of the loss beyond the horizon repair it", 0.014, "beyond", False,
             {"loss_horizon": 5, "loss_density": 0.05}),
        )
    ),
    *(
        Error(f"july-recurrence-inside-{last}", f"inside a loss horizon of {last}", JULY, error, "recurrence",
              "transformer", horizon=None, params={"loss_horizon": last}, first=last, supervision=DRAWS,
              shorter=SHORTER, sequences=150_000 * 64)
        for last, error in ((5, 0.020), (3, 0.028))
    ),
    *(
        HeldOut(f"july-recurrence-heldout{suffix}", f"held-out prefixes fail{told}", JULY, "in words", "recurrence",
                "transformer", "heldout", {"holdout": 0.2, **params})
        for suffix, told, params in (("", "", {}), ("-31", ", p = 31", {"modulus": 31}))
    ),
)  # fmt: skip

CHAINS: tuple[Claim, ...] = (
    *(
        Error(f"orders-{order}", f"NLL above Bayes on order-{order} chains, per cent", ORDERS, gap, "markov",
              "transformer", "kl", None, params={"order": order}, relative=True, failure=order >= 4, supervision=DRAWS,
              preset="markov-report", shorter=f". {SHORTER}", sequences=sequences, why=CHAIN_LENGTH)
        for order, gap, sequences in (
            (1, 0.56, 128_000), (2, 1.75, 64_000), (3, 1.69, 57_600),
            (4, 13.2, 12_000 * 64), (5, 23.5, 12_000 * 64), (6, 27.8, 12_000 * 64),
        )
    ),
    *(
        ReportNumber(f"orders-posterior-{order}", f"posterior samples of order-{order} chains, MAE of their mean",
                     ORDERS, error, "markov", "transformer", "markov-report", "chain_posterior",
                     {"metric": "mean MAE"}, "mean", params={"order": order}, floor="exact predictor")
        for order, error in ((1, 0.010), (2, 0.090), (3, 0.065))
    ),
    *(
        Diversity(f"orders-diversity-{task}", f"few laws are memorised, many are not (transformer on {task})", ORDERS,
                  "in words, of regression", task, "transformer")
        for task in ("regression", "markov")
    ),
)  # fmt: skip

STATE_TRACKING: tuple[Claim, ...] = (
    Order("tracking-s5-order", "a signed delta rule is ahead of Mamba on S5, beyond the training length", TRACKING,
          "in words", "group", "gated-deltanet-signed", "mamba2", horizon=50, part="post"),
    Order("tracking-s5-sign", "the sign puts the delta rule ahead on S5, beyond the training length", TRACKING,
          "in words", "group", "gated-deltanet-signed", "gated-deltanet", horizon=50, part="post"),
)  # fmt: skip

STICKY = {"order": 1, "alphabet": 8, "sticky": 8.0}  # a visible chain that mostly repeats itself, of hidden law
DYNAMICS: tuple[Claim, ...] = tuple(
    FewerSteps(f"paper2-values-{id}", f"values that learn ten times as fast save steps ({told})", PAPER2, 430 / 1000,
               task, "transformer", "value_lr", 1.0, 10.0, {"optimizer": "adamw", "decay": "none"}, params)
    for id, told, task, params in (
        ("sticky", "a sticky visible chain", "markov", STICKY),
        ("bijection", "bijection", "bijection", {}),
        ("hmm", "hmm", "hmm", {}),
    )
)  # fmt: skip

PRIMITIVES: tuple[Claim, ...] = tuple(
    Primitives(f"readme-primitives-{arch}", f"{name} has {which}", README, published, arch, frozenset(has))
    for name, arch, which, published, has in (
        ("the transformer", "transformer", "all primitives", "3 of 3", ("accumulation", "transport", "binding")),
        ("Mamba", "mamba2", "two primitives, not binding", "2 of 3", ("accumulation", "transport")),
        ("an LSTM", "lstm", "accumulation alone", "1 of 3", ("accumulation",)),
        ("an MLP", "mlp", "no primitive", "fails", ()),
    )
)

MECHANISMS: tuple[Claim, ...] = (
    *(
        Order(f"v1-ffn-{task}", f"Feed-forward layers perform the posterior update ({task})", V1, "in words", task,
              "transformer", "transformer-no-ffn", UPDATE, of_mechanism=True)
        for task in ("bijection", "hmm")
    ),
    *(
        Mechanism(f"{source}-{id}-{arch}-{task}", id, f"{STATEMENTS[id][0]} ({arch} on {task})", source, published,
                  task, arch, *why)
        for source, published, id, arch, tasks, *why in (
            (V1, "smooth", "no-discontinuity", "transformer", ("hmm",)),
            (V1, "> 10 times", "every-layer", "transformer", ("bijection", "hmm"), LAYERS),
            (V1, "one head", "frame-head", "transformer", ("bijection", "hmm"), HEADS),
            (V3, "0.052, random 0.082", "orthogonal-keys", "transformer", ("bijection", "hmm")),
            (V1, "sharpens", "alignment", "transformer", ("bijection", "hmm")),
            (V1, "near zero", "eliminated", "transformer", ("bijection", "hmm")),
            (GUIDE, "PC1 > 80 %; later 84-90 %", "manifold", "transformer", ("bijection", "hmm")),
            (V1, "along PC1", "entropy-axis", "transformer", ("bijection", "hmm")),
            (V1, "attention first", "attention-first", "transformer", ("bijection", "hmm")),
            (V3, "five clusters", "clusters", "mamba2", ("hmm",)),
        )
        for task in tasks
    ),
)  # fmt: skip

FINISHED = ". Published of the training's course, ours of the finished model"
AT_EMBEDDING = ". Published at layer 0 or the embedding; at the embedding ours is the whole swap by construction"
ABLATED = ". Ours removes all that varies with the identity of hypotheses, at the positions that stand for them"
OURS = ". The question is ours: no number is published"
LANGUAGE = ". Published of language models: Pythia, Phi-2, Llama-3, Mistral; ours is a small transformer on {task}"
CAUSAL: tuple[Claim, ...] = (
    *(
        SeedStatement(f"{id}-{task}", statement, f"{claim} (transformer on {task})", source, published, task,
                      "transformer", why="".join(why).format(task=task))
        for id, statement, claim, source, published, *why in (
            ("v1-belief-transformer", "belief-readable", STATEMENTS["belief"][0], V1, "in words"),
            ("jlens-frame-overlap", "frame-overlap", "Answers are sensitive to the frame of hypotheses", JULY,
             "3 times the null, from step 400 on", FINISHED),
            ("jlens-identity-random", "identity-random", "A random-init model decodes identity, too", JULY, "100 %"),
            ("jlens-readout-swap", "readout-swap", "Swapping what answers are sensitive to redirects the answer", JULY,
             "redirects it; random subspace -6.7 bits"),
            ("jlens-frame-swap", "frame-swap", "Swapping the frame redirects the answer", JULY,
             "+8.17 bits, the full residual's ceiling; random subspace -6.7", AT_EMBEDDING),
            ("jlens-entropy-inert", "entropy-axis-inert", "The direction that decodes entropy is not used", JULY,
             "-0.001 bits; without the frame 0.75"),
            ("paper3-entropy-inert", "entropy-axis-inert", "Ablating the entropy axis changes nothing", PAPER3,
             "nothing", LANGUAGE),
            ("jlens-frame-ablation", "frame-ablation", "Removing the frame costs bits", JULY, "0.75 bits", ABLATED),
            ("jlens-no-single-head", "no-single-head", "No single head is indispensable", JULY,
             "1.13 times the next; nine heads above half of the top"),
            ("jlens-writers", "writers", "Heads that write more of the frame cost more", JULY, "in words"),
            ("jlens-frame-first", "frame-before-precision", "The frame forms before the error falls", JULY,
             "plateau at step 2,500, then the error falls 40 times"),
        )
        for task in ("bijection", "hmm")
    ),
    Unmeasured("jlens-query-head", "In the query format one head is indispensable", JULY,
               "2.74 times the next; one head above half of the top", "No task of ours has that format"),
    Unmeasured("jlens-keys-head", "Key orthogonality does not find the head that ablation finds", JULY, "in words",
               "Our reports measure both, and do not compare them"),
    Unmeasured("paper2-routing", "Attention moves towards values of positive advantage (routing law)", PAPER2,
               "in words", "A law of gradients: no report measures them"),
    Unmeasured("paper2-responsibility", "Values move to means that are weighted by responsibility", PAPER2, "in words",
               "A law of gradients: no report measures them"),
    SeedStatement("jlens-horizon", "geometry-outlives", "Past a loss horizon the geometry stays, the computation dies",
                  JULY, "4.8 times the null", "recurrence", "transformer", {"loss_horizon": 5}),
    SeedStatement("jlens-rescue", "rescue", "A transplanted state rescues the computation beyond the loss horizon",
                  JULY, "not published", "recurrence", "transformer", {"loss_horizon": 5}, OURS),
)  # fmt: skip

BERNOULLI: tuple[Claim, ...] = (
    *(
        ReportNumber(id, claim, LPE, NUMBERS[table][metric][0], *LPE_MODEL, table, {"metric": metric}, "this run",
                     more=metric == "Pearson r")
        for id, claim, table, metric in (
            ("lpe-gap", "NLL above Bayes, per cent", "loss", "gap (%)"),
            ("lpe-correlation", "correlation with Bayes", "agreement", "Pearson r"),
            ("lpe-mae", "MAE against Bayes over contexts", "agreement", "MAE"),
        )
    ),
    *(
        ReportNumber(f"lpe-{metric.lower().replace(' ', '-')}", f"posterior samples, {metric}", LPE, values[0],
                     *LPE_MODEL, "posterior_metrics", {"metric": metric, "source": "this run"}, "mean",
                     each="posterior_contexts")
        for metric, values in NUMBERS["posterior_metrics"].items()
    ),
    *(
        ReportNumber(f"lpe-lowprob-{share}", f"low probabilities, relative error, {share}", LPE, values[0],
                     *LPE_MODEL, "lowprob", {"statistic": share, "source": "this run"},
                     "rollout estimator, relative error", floor="exact predictor's rollouts", median=True,
                     each="lowprob_contexts" if share == "p50" else "")
        for share, values in NUMBERS["lowprob"].items()
    ),
    Unmeasured("lpe-bands-counts", "pure contexts among 3,000", LPE,
               "51 all-zero and 62 all-one; 45 with n <= 8; 42 with Bayes in (0.1, 0.9)",
               "A property of the contexts that were drawn; the reports show their share, 3.77 % there"),
    Unmeasured("lpe-bands-level", "in pure contexts the prediction hardly depends on their length", LPE,
               "almost length-invariant, near 0.0339 and 0.9667", "The reports show the two means and no slope"),
    ReportStatement("study-negation", "reading the negated residual makes heads and tails exactly alike", STUDY,
                    "perfect symmetry", *NARROW, "symmetry_construction", "mean absolute", most=1e-5,
                    row={"norm and head": "without their biases"}),
    ReportStatement("study-order", "the order of the bits hardly matters to a prediction", STUDY, "very well",
                    *NARROW, "permutation", "standard deviation", most=0.01),
    ReportStatement("study-symmetry", "heads and tails are not treated exactly alike", STUDY, "not exactly",
                    *NARROW, "symmetry", "mean absolute", least=1e-5),  # float32 rounds at a hundredth of it
    ReportStatement("study-linear", "what a head of width 1 writes is nearly linear in the share of ones", STUDY,
                    "nearly linear", *NARROW, "coefficient", "R²", least=0.95),
)  # fmt: skip

CLAIMS: tuple[Claim, ...] = (
    *ERRORS,
    *OWN_TASKS,
    *RECURRENCES,
    *CHAINS,
    *STATE_TRACKING,
    *DYNAMICS,
    *PRIMITIVES,
    *MECHANISMS,
    *CAUSAL,
    *BERNOULLI,
)
