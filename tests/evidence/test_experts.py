"""Distinct experts of a mixture against the published table of Kimi-K2.5 (384 experts, 8 a token), and where the routing is read."""

import pytest

from eagle_forensics.evidence.experts import Experts, distinct_experts, experts

KIMI = Experts(384, 8)


@pytest.mark.parametrize(("tokens", "u"), [(1, 8), (2, 15.8), (3, 23.5), (4, 31.0), (6, 45.6), (8, 59.5), (16, 109.82), (32, 188), (64, 284)])
def test_distinct_experts(tokens, u):
    assert distinct_experts(tokens, 384, 8) == pytest.approx(u, abs=0.005 if tokens == 16 else 0.5 if tokens > 16 else 0.05)


def test_routing_is_read_from_the_config():
    assert experts({"text_config": {"n_routed_experts": 384, "num_experts_per_tok": 8}}) == KIMI
    assert experts({"num_hidden_layers": 30}) == Experts() and Experts().load(5) == 5
