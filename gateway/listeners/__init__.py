"""What all listeners share: the admission of connections, the certificate, and trusted proxies."""
