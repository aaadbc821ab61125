"""Where records come from: the sealed files of a log, or a gateway over HTTP."""
