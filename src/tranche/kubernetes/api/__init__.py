"""The API server: a narrow protocol, the client behind it, and how it is found."""
