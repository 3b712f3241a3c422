"""Descriptions of a machine for programs and people: pure functions from its state to JSON data and words.

All front ends share them, so each shows the same. docs/reference/json.md describes the documents. Amounts of memory are bytes,
times are RFC 3339 in UTC, and unknown values are null.
"""
