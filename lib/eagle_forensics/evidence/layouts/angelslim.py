"""AngelSlim's dumps (`rank_{r}/rows_*/data_{i}.ckpt`; `generate_hidden_for_draft_model.py`, 0.5).

The ranks shard the data set: each sample is written once, so the rank of the folder is no copy's.
"""

from eagle_forensics.evidence.layouts.parts import Layout, has_rank, pair

ANGELSLIM = Layout(
    "angelslim", "`hidden_states` [1, T, n*H] with `target_hiddens` [1, T, H]",
    lambda c: has_rank(c, "hidden_states", 2) and has_rank(c, "target_hiddens", 2),
    lambda c, _: pair(c, "hidden_states", "target_hiddens"))
