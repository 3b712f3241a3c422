"""The API server: a narrow protocol, its client, and how to find the server."""
