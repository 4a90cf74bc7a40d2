"""The application for uvicorn and other ASGI servers. It closes the producer at shutdown."""

import os

from django.core.asgi import get_asgi_application

from pykaproducer.contrib.asgi import close_at_shutdown
from pykaproducer.contrib.django import producer

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
application = close_at_shutdown(get_asgi_application(), producer)
