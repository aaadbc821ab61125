"""What operators see of a running gateway: metrics, the program's log, and traces."""
