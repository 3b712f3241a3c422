"""Whether this machine can share its GPUs, and what a maintainer must know about it."""
