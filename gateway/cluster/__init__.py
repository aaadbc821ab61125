"""Several gateways as one service: whose turn it is to accept, and the batches that they share."""
