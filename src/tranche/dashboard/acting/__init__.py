"""Acting from a page: `tranche dashboard --act`.

What can be done is an action (`action`, `release`, `layout`). Its plan is shown first, with a form whose key (`form_keys`) is for
that session, that action and that plan alone, and once. `action_handler` checks what comes back; `operations` does it on a thread
of its own.
"""
