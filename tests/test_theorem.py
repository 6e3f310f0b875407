"""Theorem 1 of arXiv:2512.22471: the predictor with the least expected cross-entropy is the posterior predictive.

Tested on a tabular predictor, a vector of logits for each distinct prefix, which can represent every predictor.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

from bench.seeds import generator
from tasks.base import TASKS

SMALL = [
    ("bijection", {"size": 3, "horizon": 3}),
    ("bernoulli", {"horizon": 4}),
    ("markov", {"order": 1, "horizon": 4}),
    ("recurrence", {"modulus": 3, "horizon": 3}),
    ("group", {"group": "s3", "noise": 0.2, "horizon": 3}),
]
SEQUENCES = 200_000


@pytest.mark.parametrize(("name", "params"), SMALL)
def test_a_table_trained_on_draws_becomes_the_posterior(name, params):
    task = TASKS[name](**params)
    batch = task.sample(SEQUENCES, task.horizon, generator("cpu", 0, "theorem"))
    posterior = task.posterior(batch)
    for index, query in enumerate(batch.queries.tolist()):
        prefixes, row, counts = batch.tokens[:, : query + 1].unique(dim=0, return_inverse=True, return_counts=True)
        logits = torch.zeros(len(prefixes), task.shape.classes, dtype=torch.float64, requires_grad=True)
        draws = torch.zeros_like(logits).index_put_((row, batch.targets[:, index]), torch.tensor(1.0).double(), True)
        optimizer = torch.optim.LBFGS([logits], max_iter=300, line_search_fn="strong_wolfe")

        def loss(draws=draws, logits=logits, optimizer=optimizer):
            optimizer.zero_grad()
            mean = cross_entropy(logits, draws / draws.sum(1, keepdim=True))  # each prefix has its own minimum
            mean.backward()
            return mean

        optimizer.step(loss)
        exact = torch.zeros_like(logits).index_copy_(0, row, posterior[:, index])
        noise = (exact * (1 - exact) / counts[:, None]).sqrt()
        assert ((logits.softmax(1) - exact).abs() <= 5 * noise + 1e-3).all()
        assert (exact.sum(1) - 1).abs().max() < 1e-9
