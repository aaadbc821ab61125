"""The core of Trellis: the bus, the log, the shells. Nothing in it names a protocol."""
