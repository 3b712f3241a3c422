"""The front end for one machine without a cluster: run a command in a share, and wait in order for one."""
