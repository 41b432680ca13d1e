"""The proxy bench: what a gateway adds between an app and its model, beside nginx and others. `make bench` runs it."""
