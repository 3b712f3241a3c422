"""`tranche controller`: what a cluster runs once, beside its nodes' agents: the admission webhook for pods."""
