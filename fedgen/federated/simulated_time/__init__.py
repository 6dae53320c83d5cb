"""Simulated time: how long clients' turns take, synchronous and buffered asynchronous rounds on one clock."""
