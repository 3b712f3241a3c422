"""What to do: an observed state goes in, a decision or a Plan comes out.

Every function here is pure, so a decision can be replayed from its inputs.
"""
