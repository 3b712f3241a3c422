"""One web application with two sources: a machine (`tranche dashboard`) and a cluster (`cluster`, `tranche cluster-dashboard`).

Pages are pure functions from the JSON documents to HTML (`frame`, `*_page`). `web` has the gate, forms, streams and refusals of
both, and `live` tells open pages what is new. `access` decides who is let in, `watch` looks at the machine on its own thread,
and `app` has the machine's addresses.
"""
