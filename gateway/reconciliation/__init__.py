"""Finds which messages two gateways do not share: range-based set reconciliation, negentropy protocol version 1."""
