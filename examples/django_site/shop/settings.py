"""The settings of the site. ``PYKAPRODUCER`` contains those of pykaproducer."""

import os
import pathlib

INSTALLED_APPS = ["pykaproducer.contrib.django", "shop"]

PYKAPRODUCER = {
    "bootstrap_servers": os.environ.get("KAFKA_SERVERS", "localhost:9092"),
    "client_id": "shop",
}

SECRET_KEY = os.environ.get("SECRET_KEY", "for local tests only")
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", pathlib.Path(__file__).parent.parent / "shop.db"),
        # A writer acquires the lock at the beginning of its transaction.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
