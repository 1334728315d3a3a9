"""01 config inspection: claims against claims, before any tensor is touched.

What the draft's config, the trainer, the dump's labels, the launch line and the engine's rules of that version say about
the same thing, and where two of them cannot both be true.
"""
