"""Laws of the group task: tables against permutations and the axioms, beliefs against all words and a library."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

from bench.registry import BadInput
from bench.seeds import generator
from tasks.group import CYCLIC, GROUPS, PERMUTATIONS, Group, elements_of, right_products

EXACT = {"rtol": 0.0, "atol": 1e-12}
SIZES = {"s3": 6, "z60": 60, "a5": 60, "s5": 120}


def draw(task, n, seed=0):
    return task.sample(n, task.horizon, generator("cpu", seed, "test"))


def compose(p, q):
    """First q, then p."""
    return tuple(p[q[i]] for i in range(len(p)))


def multiply(group, word):
    """The element of a word of generator numbers, without the task's tables."""
    if group in CYCLIC:
        order, steps = CYCLIC[group]
        return sum(steps[x] for x in word) % order
    points, even_only, generators = PERMUTATIONS[group]
    result = tuple(range(points))
    for x in word:
        result = compose(result, generators[x])
    return list_elements(points, even_only).index(result)


def list_elements(points, even_only):
    found = []
    for p in permutations(range(points)):
        if not even_only or np.linalg.det(np.eye(points)[list(p)]) > 0:
            found.append(p)
    return found


def enumerate_words(task, batch):
    """At every position, weigh every word that could have been: its chance to be shown as it was."""
    elements, generators = SIZES[task.group], task.shape.vocab
    answer = torch.zeros(*batch.targets.shape, elements, dtype=torch.float64)
    for b, shown in enumerate(batch.tokens.tolist()):
        for k in range(len(shown)):
            for word in product(range(generators), repeat=k + 1):
                wrong = sum(x != y for x, y in zip(word, shown[: k + 1], strict=True))
                weight = (1 - task.noise) ** (k + 1 - wrong) * (task.noise / (generators - 1)) ** wrong
                answer[b, k, multiply(task.group, word)] += weight
            answer[b, k] /= answer[b, k].sum()
    return answer


def table(group):
    """The whole multiplication table, from the products with generators alone: a word for every element."""
    products = right_products(group).tolist()
    words, edge = {0: ()}, [0]
    while edge:
        g = edge.pop(0)
        for x, there in enumerate(products[g]):
            if there not in words:
                words[there] = (*words[g], x)
                edge.append(there)
    size = len(products)
    assert len(words) == size  # the generators generate
    full = np.empty((size, size), dtype=int)
    for h, word in words.items():
        column = np.arange(size)
        for x in word:
            column = np.array(products)[column, x]
        full[:, h] = column
    return full


@pytest.mark.parametrize("group", GROUPS)
def test_tables_satisfy_the_group_axioms(group):
    full = table(group)
    size = SIZES[group]
    assert full.shape == (size, size)
    assert (full[0] == np.arange(size)).all()  # 0 is the identity on both sides
    assert (full[:, 0] == np.arange(size)).all()
    assert (np.sort(full, 0) == np.arange(size)[:, None]).all()  # hence inverses
    assert (np.sort(full, 1) == np.arange(size)).all()
    assert (full[full] == full[np.arange(size)[:, None, None], full[None]]).all()  # (a b) c = a (b c)
    assert (full == full.T).all() == (group == "z60")


@pytest.mark.parametrize("group", PERMUTATIONS)
def test_tables_are_the_composition_of_permutations(group):
    points, even_only, _ = PERMUTATIONS[group]
    elements = list_elements(points, even_only)
    assert list(elements_of(group)) == elements
    full = table(group)
    for a, b in product(range(0, len(elements), 7), range(len(elements))):
        assert elements[full[a, b]] == compose(elements[a], elements[b])


@pytest.mark.parametrize(("group", "solvable"), [("s3", True), ("z60", True), ("a5", False), ("s5", False)])
def test_derived_series_ends_where_the_group_is_solvable(group, solvable):
    full = table(group)
    inverse = full.argmin(1)  # where the product is 0
    members = set(range(len(full)))
    while True:
        commutators = {int(full[full[a, b], full[inverse[a], inverse[b]]]) for a in members for b in members}
        smaller = commutators
        while len(grown := smaller | {int(full[a, b]) for a in smaller for b in smaller}) > len(smaller):
            smaller = grown
        if smaller == members:
            break
        members = smaller
    assert (len(members) == 1) == solvable


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("group", GROUPS)
def test_posterior_matches_all_words(group, noise):
    task = Group(group, noise, horizon=5)
    batch = draw(task, 3)
    torch.testing.assert_close(task.posterior(batch), enumerate_words(task, batch), **EXACT)


@pytest.mark.parametrize(("group", "noise"), [("s3", 0.15), ("z60", 0.05), ("a5", 0.1), ("s5", 0.1)])
def test_belief_equals_hmmlearn_at_fifty_steps(group, noise):
    """As a hidden Markov chain over pairs (element, last generator): the pair says what may be shown."""
    task = Group(group, noise, horizon=50)
    batch = draw(task, 3)
    ours = task.posterior(batch).numpy()
    products = right_products(group).numpy()
    elements, generators = products.shape
    pairs = [(g, x) for g in range(elements) for x in range(generators)]
    emission = np.array(
        [[1 - noise if y == x else noise / (generators - 1) for y in range(generators)] for _, x in pairs]
    )
    transition = np.zeros((len(pairs), len(pairs)))
    for i, (g, _) in enumerate(pairs):
        for x in range(generators):
            transition[i, pairs.index((products[g, x], x))] += 1 / generators
    library = CategoricalHMM(n_components=len(pairs), n_features=generators)
    library.startprob_ = transition[0]  # from the identity
    library.transmat_, library.emissionprob_ = transition, emission
    for b in range(len(batch.tokens)):
        shown = batch.tokens[b].numpy()[:, None]
        for k in (0, 1, 7, 19, 49):
            theirs = library.predict_proba(shown[: k + 1])[-1].reshape(elements, generators).sum(1)
            np.testing.assert_allclose(ours[b, k], theirs, rtol=0, atol=1e-10)


def test_noise_is_the_share_of_generators_shown_as_another():
    task = Group("z60", noise=0.2, horizon=20)
    batch = draw(task, 4000)
    steps = torch.tensor(CYCLIC["z60"][1])
    elements = torch.nn.functional.pad(batch.targets, (1, 0))
    true = (elements.diff(dim=1) % 60)[..., None].eq(steps).long().argmax(-1)
    wrong = batch.tokens != true
    assert wrong.double().mean().item() == pytest.approx(0.2, abs=4 * (0.16 / wrong.numel()) ** 0.5)
    others = ((batch.tokens - true) % 3)[wrong]
    assert others.eq(1).double().mean().item() == pytest.approx(0.5, abs=4 * (0.25 / len(others)) ** 0.5)


def test_without_noise_the_answer_is_the_product():
    task = Group("s5")
    batch = draw(task, 50)
    torch.testing.assert_close(task.posterior(batch).argmax(-1), batch.targets)
    assert set(task.posterior(batch).unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group("s4"), "group must be one of s3, z60, a5, s5, not 's4'"),
        (lambda: Group(noise=1.0), "noise must be at least 0 and below 1, not 1.0"),
        (lambda: Group(noise=-0.1), "noise must be at least 0 and below 1, not -0.1"),
        (lambda: Group().sample(1, 0, generator("cpu", 0)), "horizon must be at least 1, not 0"),
    ],
)
def test_impossible_parameters_are_refused_by_name(make, message):
    with pytest.raises(BadInput, match=message):
        make()
