"""Rows as trainers read them: exports, training views, the draft vocabulary."""
