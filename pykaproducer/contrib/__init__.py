"""Integrations with web frameworks: Django, Flask and ASGI applications (``docs/web.rst``).

Nothing in here is imported unless a program imports it by name.
"""
