"""At home in web frameworks: Django, Flask, and whatever speaks ASGI (``docs/web.rst``).

Nothing in here is imported unless it is asked for by name.
"""
