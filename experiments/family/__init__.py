"""The family: what no paper has asked, and the controls that all tables are judged by.

[The plan](../PLAN.md) has what is left to run, and what was decided after data.
"""
