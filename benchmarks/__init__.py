"""Benchmarks of the gateway beside other servers, and beside its earlier commits. CONTRIBUTING.md says how to measure.

`catalogue.py` has all workloads, `workload.py` the words, `servers.py` the servers, `load` the load generator in C.
Figures are items per CPU-second of the server process: a busy machine changes them less than it changes items per
second. Rounds are interleaved (A B, B A, ...), and only ratios should be quoted. On one core (`taskset -c 0 python -m
benchmarks`) figures repeat best, but there bursts reach the server in larger pieces, which flatters whoever joins what
it sends.
"""
