"""Acting from a page: `tranche dashboard --act`.

The page of an action (`actions`) first shows its plan, with a form. The form's key (`forms`) is valid once, for that session,
action and plan alone. `action_handler` checks submitted forms; `operations` runs each on its own thread.
"""
