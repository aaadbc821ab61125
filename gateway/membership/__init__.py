"""The gateway as a member of a cluster: joins it, waits for its turn, takes what the others logged, and leaves.

`gateway.cluster` decides whose turn it is, and knows neither the connection nor the running gateway; both are here.
"""
