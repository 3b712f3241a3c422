"""Benchmarks: figures beside baselines of the same run; `python -m bench`."""
