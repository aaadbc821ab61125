"""The fault harness for a cluster: NATS servers and gateways are killed, stopped and cut off under load.

`python -m tests.faults.cluster --seed N` plays a run again.
"""
