"""Who competes for one node's slices at random, what hits the node meanwhile, and a witness that asks no part of Tranche."""
