"""The admission webhook: gives a pod that asks by annotations its claim."""
