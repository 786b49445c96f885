"""Typed code of an application, checked against the installed package."""
