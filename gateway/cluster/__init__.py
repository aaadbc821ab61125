"""Several gateways as one service: the format of what they submit to a common stream."""
