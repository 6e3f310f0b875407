"""Whatever stands in a config, a record or a checkpoint: it is accepted as valid or refused with a message."""

import copy
import json
import math
import random
import struct
from typing import get_type_hints

import pytest
import torch
from pydantic import ValidationError

from bench.config import FIELDS, RunConfig, check, compose, explain, parse_settings
from bench.records import BadRecord, read
from bench.records import parse as parse_record
from bench.registry import BadInput
from bench.run.checkpoint import BadCheckpoint, check_fit, pack, parse, put, seal
from bench.run.keeper import Keeper
from bench.run.run import make_model, run_one
from bench.run.train import fit, make_optimizers
from bench.run.turns import finish

ODD = [
    None, True, False, 0, -1, 1, 2, 1e308, -0.5, 10**30, 2**63, "", "hmm", "../../etc/passwd", "__import__('os')",
    "\x00", "é" * 300, [], [[]], [1, "a"], {}, {"a": {}}, [10**9], "NaN", {"__class__": "os.system"}, [None] * 50,
]  # fmt: skip
ENDLESS = [math.nan, math.inf, -math.inf]  # a command line can say them, JSON cannot


@pytest.fixture(scope="module")
def config():
    few = {"steps": 4, "layers": 1, "width": 16, "horizons": (20,), "sequences": 16}
    return compose("smoke", "mlp-pointwise", "hmm", 0, "cpu", few)


def mutate(tree, rng, odd=ODD):
    """One to three changes anywhere in a tree of plain values."""
    tree, odd = copy.deepcopy((tree, odd))  # a later change may fall into what an earlier one put there
    for _ in range(rng.randint(1, 3)):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
                node = node[key]
                continue
            what = rng.random()
            if what < 0.6:
                node[key] = rng.choice(odd)
            elif what < 0.8 and isinstance(node, dict):
                del node[key]
            elif isinstance(node, dict):
                node[rng.choice(["new", "", "schema", "id", "lr"])] = rng.choice(odd)
            else:
                node.insert(key, rng.choice(odd))
            break
    return tree


def scramble(content, rng):
    """Bytes that were cut, flipped, repeated or put in another's place."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        i, what = rng.randrange(max(1, len(data))), rng.random()
        if what < 0.3:
            del data[i:]
        elif what < 0.7 and data:
            data[i] = rng.randrange(256)
        elif what < 0.85:
            data[i:i] = rng.randbytes(rng.randint(1, 40))
        else:
            data[:8] = struct.pack("<Q", rng.choice([0, 1, 7, 2**31, 2**63, 2**64 - 1]))
    return bytes(data)


def tried(read_it, refusals):
    """True if accepted, False if refused with a message; anything else is an error of ours."""
    try:
        read_it()
    except refusals as reason:
        if not str(reason):
            pytest.fail("refused without a message")
        return False
    return True


def test_mutated_configs_are_accepted_or_refused(config):
    rng = random.Random(0)
    accepted = 0

    def use(data):
        try:
            read = FIELDS.validate_json(json.dumps(data))
        except ValidationError as error:
            raise BadInput(explain(error)) from error
        check(read)
        written(read)

    for _ in range(250):
        data = mutate(config.to_json(), rng, [*ODD, *ENDLESS])
        accepted += tried(lambda data=data: use(data), BadInput)
    assert 0 < accepted < 125
    for _ in range(150):
        key = rng.choice([*config.to_json(), "states", "size", "", "a.b"])
        words = [f"{key}{rng.choice(['=', '', '=='])}{rng.choice([*ODD, *ENDLESS])}"]
        tried(lambda words=words: written(compose("smoke", "mlp", "hmm", 0, "cpu", parse_settings(words))), BadInput)


@pytest.mark.parametrize(("task", "name"), [("regression", "noise"), ("hmm-sticky", "relaxation"), ("bernoulli", "a")])
def test_every_number_of_an_accepted_config_is_finite(task, name):
    numbers = [field for field, kind in get_type_hints(RunConfig).items() if kind is float]
    assert {"lr", "weight_decay", "clip"} <= set(numbers)
    for key in (name, *numbers):
        for value in ENDLESS:
            with pytest.raises(BadInput, match=f"{key} must "):
                compose("smoke", "mlp", task, 0, "cpu", {key: value})


def written(config):
    """As a record has it."""
    return json.dumps(config.to_json(), allow_nan=False)


def test_mutated_records_are_accepted_or_refused(config, tmp_path):
    rng = random.Random(1)
    record, _ = run_one(config)
    whole = record.to_json()
    outcomes = [tried(lambda: parse_record(json.dumps(mutate(whole, rng))), BadRecord) for _ in range(300)]
    assert 0 < sum(outcomes) < 300
    text = json.dumps(whole).encode()
    for i in range(100):
        path = tmp_path / f"{i}.json"
        path.write_bytes(scramble(text, rng))
        tried(lambda path=path: read(path), BadRecord)


def test_mutated_checkpoints_are_accepted_or_refused(config):
    rng = random.Random(2)
    model = make_model(config)
    keeper = Keeper(config)
    finish(fit(model, config.make_task(), config, lambda _: None, keeper))
    optimizers = stepped_optimizers(model, config)
    content = pack(keeper.at, config, model, optimizers)
    state, tensors = parse(content)
    check_fit(state, tensors, config, model, optimizers)
    for _ in range(150):
        with pytest.raises(BadCheckpoint):
            parse(_different(content, rng))
    accepted = 0
    for _ in range(250):  # whole files with a true checksum, but with another content
        changed, others = mutate(state, rng), dict(tensors)
        name = rng.choice(list(others))
        if rng.random() < 0.3:
            others[name] = rng.choice(
                [others[name].flatten()[1:], others[name].double(), torch.ones(3, 2), torch.zeros(())]
            )
        elif rng.random() < 0.3:
            others[rng.choice(["optimizer/9/a/b", "optimizer/x", "model/new", "///"])] = others.pop(name)

        def use(changed=changed, others=others):
            found, loaded = parse(seal(changed, others))
            check_fit(found, loaded, config, model, optimizers)
            put(found, loaded, model, optimizers)

        accepted += tried(use, BadCheckpoint)
    assert 0 < accepted < 250


def stepped_optimizers(model, config):
    """Optimizers that have taken a step, so that they have a state."""
    optimizers = make_optimizers(model, config)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for optimizer in optimizers:
        optimizer.step()
    return optimizers


def _different(content, rng):
    while (changed := scramble(content, rng)) == content:
        pass
    return changed
