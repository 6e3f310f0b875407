"""Reading the negated residual stream is symmetric by construction, up to the biases of the readout."""

import torch
from torch import nn

from bench.config import compose
from bench.report.diagnostics.symmetry import _without_biases, negated_excess
from bench.seeds import generator
from tasks.bernoulli import draw_bits


def test_a_negated_residual_stream_gives_the_flipped_answer_up_to_biases():
    config = compose("smoke", "transformer", "bernoulli", 0, "cpu", {})
    task, model = config.make_task(), config.make_model()
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    bits = draw_bits(task.draw_p(20, generator("cpu", 0, "p")), 12, generator("cpu", 0, "bits"))
    assert negated_excess(_without_biases(model), task, bits).abs().max() < 1e-6
    assert negated_excess(model, task, bits).abs().max() > 0.01


def test_a_model_without_a_norm_has_one_bias_less():
    """Two dimensions have none: the narrow model of the preset bernoulli-bottleneck."""
    model = compose("bernoulli-bottleneck", "transformer", "bernoulli", 0, "cpu", {}).make_model()
    assert isinstance(model.norm, nn.Identity)
    nn.init.ones_(model.head.bias)
    assert not _without_biases(model).head.bias.any()
