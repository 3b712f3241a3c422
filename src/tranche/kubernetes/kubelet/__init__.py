"""What the kubelet says of its pods, and the messages of its protocols."""
