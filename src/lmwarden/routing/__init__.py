"""The decision: a pure state machine. No I/O, no clock, no logging, no asyncio.

Time and observations come in as arguments; actions come out. The live gateway, the simulated engine's
own balancer and the simulation in virtual time drive the same objects.
"""
