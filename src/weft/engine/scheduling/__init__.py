"""The scheduler: decides which sequences run in a step, with how many tokens, on which blocks. Plain Python, no
device.
"""
