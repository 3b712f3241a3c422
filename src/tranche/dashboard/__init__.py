"""The page of one machine: `tranche dashboard`.

Pages are pure functions from the JSON documents to HTML (`frame`, `*_page`); `access` decides who is let in; `watch` looks at the
machine on a thread of its own, and `app` and `server` are all that knows of HTTP.
"""
