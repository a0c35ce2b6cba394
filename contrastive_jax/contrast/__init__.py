"""Comparison of queries with candidates; each module is one axis on which methods differ."""
