"""Acting from a page: `tranche dashboard --act`.

An action is one thing a page can do (`action`, `release`, `layout`). The page first shows its plan, with a form. The form's key
(`form_keys`) is valid once, for that session, action and plan alone. `action_handler` checks submitted forms; `operations` runs
each on its own thread.
"""
