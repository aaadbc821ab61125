"""What operators see of a running gateway: metrics, the program's own log, and traces."""
