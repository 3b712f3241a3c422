"""The MPS daemons that are Tranche's."""
