"""Judgements about a cluster's facts; pure, a module for each thing that can be wrong."""
