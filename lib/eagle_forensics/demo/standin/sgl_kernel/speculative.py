"""NGRAM speculation only; SGLang imports the name whatever algorithm is served."""


def reconstruct_indices_from_tree_mask(*args, **kwargs):
    """Refuses: the stand-in serves EAGLE, EAGLE3 and STANDALONE."""
    raise NotImplementedError("the plain-torch stand-in does not serve NGRAM speculation")
