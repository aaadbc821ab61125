"""How fast is it, next to what people would run instead? `python -m benchmarks` measures and prints a table.

Figures are deliveries per CPU-second of the server process: a busy machine changes them less than it changes
deliveries per second. Rounds are interleaved (A B, B A, ...), and only ratios should be quoted. On one core
(`taskset -c 0 python -m benchmarks`) figures repeat best, but there bursts reach the server in larger pieces, which
flatters whoever joins what it sends.
"""
