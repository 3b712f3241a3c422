"""`tranche controller`: what a cluster has once, beside the agents of its nodes: the admission webhook for pods."""
