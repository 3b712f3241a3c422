"""What a person asks of a whole cluster, with the person's own rights: is everything there, and what should a maintainer see?

Everything here only reads. `facts` is what was seen, `survey` sees it, the modules of `checks` judge it without asking anybody.
"""
