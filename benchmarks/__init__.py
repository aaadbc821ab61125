"""How fast is it, next to what people would run instead? `python -m benchmarks` measures and prints a table.

Figures are deliveries per CPU-second of the server process: a busy machine changes them less than it changes
deliveries per second. Rounds are interleaved (A B, B A, ...), and only ratios should be quoted.
"""
