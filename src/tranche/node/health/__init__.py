"""Whether this machine is fit for sharing its GPUs, and what a maintainer has to know of it."""
