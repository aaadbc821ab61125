"""Moves bytes between sockets and sessions, on asyncio and trio, and shares the event loop among connections."""
