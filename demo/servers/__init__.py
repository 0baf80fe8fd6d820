"""Servers for the demo and the tests, from wheels: no root, loopback only, dead when their owner dies."""
