"""Acting from a page: `tranche dashboard --act`.

What can be done is a deed (`deed`, `release`, `layout`). Its plan is shown first, with a form whose key (`form_keys`) is for that
session, that deed and that plan alone, and once. `desk` checks what comes back; `operations` does it on a thread of its own.
"""
