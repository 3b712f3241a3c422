"""The controller's part: chooses a node and a share for each pod that waits at the gate."""
