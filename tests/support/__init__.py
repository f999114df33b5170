"""Helpers that several directories of tests share; README.md describes them."""
