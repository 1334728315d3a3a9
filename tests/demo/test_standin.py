"""The plain-torch `sgl_kernel` against trees and caches made by hand."""

import sys
from pathlib import Path

import pytest

import eagle_forensics

torch = pytest.importorskip("torch")
STANDIN = Path(eagle_forensics.__file__).parent / "demo" / "standin"


@pytest.fixture(scope="module")
def kernel():
    sys.path.insert(0, str(STANDIN))
    try:
        import sgl_kernel
    finally:
        sys.path.remove(str(STANDIN))
    yield sgl_kernel
    for name in [n for n in sys.modules if n.split(".")[0] == "sgl_kernel"]:
        del sys.modules[name]


def build(kernel, selected, parent_list, lengths, topk, depth, mode=1):
    """The links of a batch of trees, as lists, and the mask [B, n, n] of mode 1."""
    batch, n = len(selected), len(selected[0]) + 1
    size = n * n * batch if mode == 1 else sum(n * (length + n) for length in lengths)
    mask, positions = torch.ones(size, dtype=torch.bool), torch.zeros(batch * n, dtype=torch.long)
    index, child, sibling = (torch.full((batch, n), -1, dtype=torch.long) for _ in range(3))
    kernel.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_list, dtype=torch.long), torch.tensor(selected), torch.tensor(lengths), mask, positions, index, child, sibling,
        topk, depth, n, mode)
    return mask, positions.view(batch, n).tolist(), index, child, sibling


# Two branches below the root (0, 1), three candidates kept below candidate 0 and one below candidate 1:
#   slot 1 = candidate 0, slot 2 = candidate 1, slot 3 = candidate 2 (below 0), slot 4 = candidate 3 (below 0), slot 5 = candidate 4 (below 1)
TREE = {"selected": [[0, 1, 2, 3, 4]], "parent_list": [[-1, 0, 1]], "topk": 2, "depth": 2}


def test_a_chain_links_each_slot_to_the_next(kernel):
    mask, positions, index, child, sibling = build(kernel, [[0, 1, 2]], [[-1, 0, 1]], [7], topk=1, depth=3)
    assert index.tolist() == [[0, 1, 2, 3]] and child.tolist() == [[1, 2, 3, -1]] and sibling.tolist() == [[-1] * 4]
    assert positions == [[7, 8, 9, 10]]
    assert torch.equal(mask.view(4, 4), torch.ones(4, 4, dtype=torch.bool).tril())


def test_a_tree_shows_each_node_its_ancestors_only(kernel):
    mask, positions, _, child, sibling = build(kernel, lengths=[5], **TREE)
    assert child.tolist() == [[1, 3, 5, -1, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, 4, -1, -1]]
    assert positions == [[5, 6, 6, 7, 7, 7]]
    seen = [[int(j) for j in row.nonzero()] for row in mask.view(6, 6)]
    assert seen == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5]]


def test_the_full_mask_leaves_the_prefix_visible(kernel):
    mask, *_ = build(kernel, [[0, 1], [0, 1]], [[-1, 0], [-1, 0]], [2, 4], topk=1, depth=2, mode=0)
    first, second = mask[:3 * 5].view(3, 5), mask[15:].view(3, 7)
    for rows, length in ((first, 2), (second, 4)):
        assert rows[:, :length].all()
        assert torch.equal(rows[:, length:], torch.ones(3, 3, dtype=torch.bool).tril())


def test_a_node_without_its_parent_is_never_reached(kernel):
    _, positions, _, child, sibling = build(kernel, [[0, 4]], [[-1, 0, 1]], [3], topk=2, depth=2)
    assert child.tolist() == [[1, -1, -1]] and sibling.tolist() == [[-1, -1, -1]]
    assert positions[0][:2] == [3, 4]


def test_packed_masks_are_refused(kernel):
    with pytest.raises(NotImplementedError, match="tree_mask_mode 2"):
        build(kernel, [[0]], [[-1]], [1], topk=1, depth=1, mode=2)


def verify(kernel, links, candidates, wanted, width):
    _, _, index, child, sibling = links
    predicts, accepted = torch.full((index.numel(),), -9, dtype=torch.int32), torch.full((len(index), width), -1, dtype=torch.int32)
    number = torch.zeros(len(index), dtype=torch.int32)
    kernel.verify_tree_greedy_cpu(predicts=predicts, accept_index=accepted, accept_token_num=number, candidates=torch.tensor(candidates),
                                  retrive_index=index, retrive_next_token=child, retrive_next_sibling=sibling, target_predict=torch.tensor(wanted))
    return predicts.tolist(), accepted.tolist(), number.tolist()


@pytest.mark.parametrize("wanted, accepted, index, predicts", [
    ([11, 12, 13, 14], 3, [0, 1, 2, 3], [11, 12, 13, 14]),
    ([11, 99, 13, 14], 1, [0, 1, -1, -1], [11, 99, -9, -9]),
    ([99, 12, 13, 14], 0, [0, -1, -1, -1], [99, -9, -9, -9]),
])  # fmt: skip
def test_a_chain_is_accepted_up_to_the_first_difference(kernel, wanted, accepted, index, predicts):
    links = build(kernel, [[0, 1, 2]], [[-1, 0, 1]], [7], topk=1, depth=3)
    assert verify(kernel, links, [[10, 11, 12, 13]], [wanted], 4) == (predicts, [index], [accepted])


def test_the_path_turns_to_a_sibling(kernel):
    links = build(kernel, lengths=[5], **TREE)
    candidates = [[10, 21, 22, 31, 32, 41]]
    assert verify(kernel, links, candidates, [[21, 32, 0, 0, 77, 0]], 3)[1:] == ([[0, 1, 4]], [2])
    assert verify(kernel, links, candidates, [[22, 0, 41, 0, 0, 88]], 3)[1:] == ([[0, 2, 5]], [2])
    predicts, accepted, number = verify(kernel, links, candidates, [[22, 0, 50, 0, 0, 0]], 3)
    assert (accepted, number) == ([[0, 2, -1]], [1]) and predicts[0] == 22 and predicts[2] == 50


def test_each_request_of_a_batch_has_its_own_path(kernel):
    links = build(kernel, [[0, 1], [0, 1]], [[-1, 0], [-1, 0]], [3, 9], topk=1, depth=2)
    _, accepted, number = verify(kernel, links, [[1, 2, 3], [4, 5, 6]], [[2, 3, 8], [5, 0, 0]], 3)
    assert accepted == [[0, 1, 2], [3, 4, -1]] and number == [2, 1]


def test_the_width_of_the_round_caps_the_path(kernel):
    links = build(kernel, [[0, 1, 2]], [[-1, 0, 1]], [7], topk=1, depth=3)
    assert verify(kernel, links, [[10, 11, 12, 13]], [[11, 12, 13, 14]], 3)[2] == [2]


def test_slots_go_in_and_come_out_again(kernel):
    table, rows = torch.zeros(3, 8, dtype=torch.int32), torch.tensor([2, 0])
    kernel.assign_req_to_token_pool_cpu(rows, table, torch.tensor([1, 0]), torch.tensor([4, 2]), torch.tensor([5, 6, 7, 8, 9]), 8)
    assert table.tolist() == [[8, 9, 0, 0, 0, 0, 0, 0], [0] * 8, [0, 5, 6, 7, 0, 0, 0, 0]]
    out = torch.zeros(3, dtype=torch.long)
    kernel.assign_extend_cache_locs_cpu(rows, table, torch.tensor([2, 0]), torch.tensor([4, 1]), out, 8)
    assert out.tolist() == [6, 7, 8]


def test_branches_share_the_prefix_and_have_their_own_steps(kernel):
    table = torch.arange(10, 20, dtype=torch.int32)[None]
    out = torch.zeros(4, dtype=torch.long)
    kernel.assign_draft_cache_locs_contiguous_cpu(torch.tensor([0]), table, torch.tensor([3]), out, 10, 2, 2)
    assert out.tolist() == [13, 14, 15, 16]
    made = kernel.build_draft_decode_metadata_cpu(table, torch.tensor([0]), torch.tensor([3]), 2, 2, 10)
    assert made[:, :5].tolist() == [[10, 11, 12, 13, 14], [10, 11, 12, 15, 16]]


def test_cache_rows_are_all_read_before_one_is_written(kernel):
    cache = torch.arange(8, dtype=torch.float32).view(4, 2)
    kernel.copy_all_layer_kv_cache_cpu(torch.tensor([cache.data_ptr()]), torch.tensor([8]), torch.tensor([1, 0]), torch.tensor([0, 1]))
    assert cache.tolist() == [[2, 3], [0, 1], [4, 5], [6, 7]]


def test_accepted_slots_and_bonus_tokens(kernel):
    out = torch.full((4,), -1)
    kernel.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2], [3, -1]]), torch.tensor([50, 51, 52, 53]), out)
    assert out.tolist() == [50, 52, 53, -1]
    bonus = torch.zeros(2, dtype=torch.int32)
    kernel.fill_bonus_tokens_cpu(torch.tensor([[7, 8, 9], [4, 5, 6]]), torch.tensor([3, 1]), bonus, 3)
    assert bonus.tolist() == [9, 4]


def test_ids_shift_left_and_the_new_token_ends_them(kernel):
    ids = torch.tensor([1, 2, 3, 4, 5])
    kernel.rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[8], [9]]))
    assert ids.tolist() == [2, 3, 8, 5, 9]


def test_extend_equals_plain_causal_attention(kernel):
    torch.manual_seed(0)
    keys, values, q = torch.randn(6, 2, 8), torch.randn(6, 2, 8), torch.randn(3, 4, 8)
    slots = torch.tensor([[4, 0, 5, 2, 1]], dtype=torch.int32)
    o = torch.zeros(3, 4, 8)
    torch.ops.sgl_kernel.extend_attention_cpu(
        q, None, None, o, keys, values, 1.0, 1.0, slots, torch.tensor([0]), torch.tensor([5]), torch.tensor([3]), torch.tensor([0]), 3, 0.3,
        0.0, False, 0, None, None, None, True)
    k, v = (x[slots[0].long()].repeat_interleave(2, 1) for x in (keys, values))
    scores = torch.einsum("thd,shd->hts", q, k) * 0.3
    scores = scores.masked_fill(~torch.ones(3, 5, dtype=torch.bool).tril(2), float("-inf"))
    assert torch.allclose(o, torch.einsum("hts,shd->thd", scores.softmax(-1), v), atol=1e-6)


def test_a_tree_node_does_not_see_its_sibling(kernel):
    torch.manual_seed(1)
    keys, values, q = torch.randn(4, 1, 8), torch.randn(4, 1, 8), torch.randn(2, 1, 8)
    table, mask = torch.tensor([[0, 1, 2, 3]], dtype=torch.int32), torch.tensor([[1, 0], [0, 1]], dtype=torch.bool)

    def run():
        o = torch.zeros(2, 1, 8)
        torch.ops.sgl_kernel.extend_attention_cpu(
            q, None, None, o, keys, values, 1.0, 1.0, table, torch.tensor([0]), torch.tensor([4]), torch.tensor([2]), torch.tensor([0]), 2, 1.0,
            0.0, False, 0, None, None, mask.view(-1), True)
        return o

    before = run()
    values[2] += 1
    after = run()
    assert not torch.allclose(before[0], after[0]) and torch.equal(before[1], after[1])


def test_decode_stores_its_key_and_honours_the_window(kernel):
    keys, values = torch.zeros(5, 1, 4), torch.zeros(5, 1, 4)
    values[0], table = 100.0, torch.tensor([[0, 1, 2]], dtype=torch.int32)
    o = torch.zeros(1, 1, 4)
    torch.ops.sgl_kernel.decode_attention_cpu(
        torch.randn(1, 1, 4), keys, values, 1.0, 1.0, o, torch.zeros(1, 4), torch.full((1, 4), 6.0), torch.tensor([2]), torch.zeros(1), table,
        torch.tensor([0]), torch.tensor([3]), 1.0, 0.0, False, 2, None, None)
    assert values[2].eq(6).all() and torch.allclose(o, torch.full((1, 1, 4), 3.0))


def test_it_never_switches_on_the_amx_layout(kernel):
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed") and not hasattr(kernel, "convert_weight_packed")


def test_ngram_is_refused(kernel):
    from sgl_kernel.speculative import reconstruct_indices_from_tree_mask
    with pytest.raises(NotImplementedError, match="NGRAM"):
        reconstruct_indices_from_tree_mask()
