"""The process and its machine: threads, memory, file descriptors, the lock of the data directory, systemd."""
