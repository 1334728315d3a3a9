"""Embedding and head: one verdict per engine, and none against a table that merely looks odd."""

import pytest
import torch

from eagle_forensics.config.inspection import inspect
from eagle_forensics.config.tables import relate, table_findings
from eagle_forensics.evidence.tensors import read_index
from eagle_forensics.finding import Status
from tests.config.papers import LLAMA_TARGET, papers
from tests.evidence import builders

WIDTH, VOCAB = 256, 128
TARGET = LLAMA_TARGET | {"hidden_size": WIDTH, "vocab_size": VOCAB}


def real(seed: int = 0) -> torch.Tensor:
    """A table like a trained one: rows share a direction and differ in norm."""
    draw = torch.Generator().manual_seed(seed)
    norms = torch.exp(0.3 * torch.randn(VOCAB, 1, generator=draw))
    return (norms * (0.6 * torch.randn(1, WIDTH, generator=draw) + torch.randn(VOCAB, WIDTH, generator=draw))).to(torch.bfloat16)


def noise(seed: int = 1) -> torch.Tensor:
    return (0.02 * torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(seed))).to(torch.bfloat16)


def findings(folder, embedding=None, head=None, engine="sglang", version="0.5.23", **draft):
    weights = builders.head("layers.0.")
    weights |= {} if embedding is None else {"embed_tokens.weight": embedding}
    weights |= {} if head is None else {"lm_head.weight": head}
    case = papers(folder, target=TARGET, weights=weights, engine=engine, version=version, launch=None, target_weights={"model.embed_tokens.weight": real()},
                  draft={"vocab_size": VOCAB, **draft})
    return {f.id: f for f in table_findings(inspect(case))}


@pytest.mark.parametrize(("engine", "version", "status", "fault"), [("sglang", "0.5.23", Status.PASS, None), ("vllm", "0.33.0", Status.FAIL, "vocab.shared-tables")])
def test_a_random_embedding_has_one_verdict_per_engine(tmp_path, engine, version, status, fault):
    """Known case A09."""
    item = findings(tmp_path, noise(), engine=engine, version=version)["config.embedding"]
    assert (item.status, item.fault) == (status, fault), item.statement
    assert ("puts the target's" if engine == "sglang" else "keeps") in item.statement


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_targets_own_embedding_is_shared_everywhere(tmp_path, engine):
    item = findings(tmp_path, real().to(torch.float16), engine=engine, version="0.5.23" if engine == "sglang" else "0.33.0")["config.embedding"]
    assert item.status is Status.PASS and "shared" in item.statement


@pytest.mark.parametrize("table", [real() + 0.3 * real(5), real(7), real().roll(1, 0)], ids=["fine-tuned", "structured", "shifted"])
def test_a_trained_embedding_is_kept_by_vllm_and_not_accused_anywhere(tmp_path, table):
    kept = findings(tmp_path / "v", table, engine="vllm", version="0.33.0")["config.embedding"]
    lost = findings(tmp_path / "s", table)["config.embedding"]
    assert kept.status is Status.PASS
    assert lost.status is Status.INCONCLUSIVE and not lost.required and "is lost" in lost.statement


def test_relations_read_only_their_rows(tmp_path):
    builders.write_draft(tmp_path, builders.LLAMA, {"a": real(), "b": noise(), "c": real() * 2})
    t = read_index(tmp_path)
    assert relate(t["a"], t["a"]).kind == "shared"
    assert relate(t["b"], t["a"]).kind == "random"
    assert relate(t["c"], t["a"]).kind == "trained", "twice as long is aligned, but not the same table"


def test_a_tied_config_loses_a_trained_head(tmp_path):
    item = findings(tmp_path, head=noise(), tie_word_embeddings=True, draft_vocab_size=VOCAB)["config.head-source"]
    assert item.fault == "vocab.shared-tables" and (item.edits[0].key, item.edits[0].value) == ("tie_word_embeddings", False)


def test_a_tied_head_that_equals_the_table_is_fine(tmp_path):
    assert findings(tmp_path, head=real(), tie_word_embeddings=True, draft_vocab_size=VOCAB)["config.head-source"].status is Status.PASS


def test_a_null_vocabulary_takes_the_targets_head(tmp_path):
    item = findings(tmp_path, head=noise(), draft_vocab_size=None)["config.head-source"]
    assert item.fault == "vocab.shared-tables" and item.edits[0].key == "draft_vocab_size" and "null" in item.statement


def test_an_own_head_passes_and_an_absent_size_is_only_noted(tmp_path):
    own = findings(tmp_path / "a")["config.head-source"]
    absent = findings(tmp_path / "b", draft_vocab_size=...)["config.head-source"]
    assert own.status is absent.status is Status.PASS
    assert "AttributeError" in absent.statement and "AttributeError" not in own.statement


def test_without_target_weights_nobody_is_accused(tmp_path):
    case = papers(tmp_path, weights=builders.head() | {"embed_tokens.weight": noise()})
    assert {f.id: f.status for f in table_findings(inspect(case))}["config.embedding"] is Status.SKIPPED
