"""Decisions: from an observed state to a decision or a Plan.

Every function here is pure, so a decision can be replayed from its inputs.
"""
