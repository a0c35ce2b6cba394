"""The family: what no paper has asked, and the controls that all tables are judged by."""
