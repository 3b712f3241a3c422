"""The front end for one machine without a cluster: runs a command in a share, and queues for it."""
