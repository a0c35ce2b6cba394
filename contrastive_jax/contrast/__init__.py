"""Queries against candidates: the axes that a method is a choice on."""
