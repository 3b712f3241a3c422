"""How a machine is described, to programs and to people: pure functions from what was read to JSON data and to words.

The room belongs to no front end, so that each can show the same. docs/reference/json.md describes the documents. Amounts of
memory are bytes, times are RFC 3339 in UTC, and what is not known is null.
"""
