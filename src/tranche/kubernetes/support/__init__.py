"""Support for a whole cluster, with the user's own rights: is everything in place, and what should a maintainer see?

Everything here only reads. `facts` are what was seen, `survey` collects them, and the modules of `checks` judge them without
further requests.
"""
