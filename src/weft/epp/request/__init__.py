"""Requests and responses of all APIs: parsing requests, replacing model names, building refusals, reading token
usage.
"""
