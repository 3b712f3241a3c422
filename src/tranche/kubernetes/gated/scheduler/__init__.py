"""The controller's side: chooses a node and a share for each pod that waits at the gate."""
