"""REST as messages on one WebSocket, `/v1/ws`: what pages need, on one connection."""
