"""Reporting: what is there, is it whole, which tokenizer is better, and a page about it all.

`describing` gives the facts of anything that Piecemill writes, `checking` compares it with what was written,
`comparing` has several tokenizers encode the same corpus, and `reports` writes one HTML page with the facts of all.

Nothing is imported here: the command line reads `plan` alone.
"""
