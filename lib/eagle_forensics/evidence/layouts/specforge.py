"""SpecForge's offline features (`data_{i}.ckpt`, gzipped or not; SpecForge 0.1 and 0.2, `prepare_hidden_states.py`)."""

from eagle_forensics.evidence.layouts.parts import Layout, has_rank, pair

SPECFORGE = Layout(
    "specforge", "`hidden_state` [1, T, H] with `aux_hidden_state` [1, T, n*H]",
    lambda c: has_rank(c, "hidden_state", 2) and has_rank(c, "aux_hidden_state", 2),
    lambda c, _: pair(c, "aux_hidden_state", "hidden_state"))
