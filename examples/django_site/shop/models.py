"""The models of the site."""

from django.db import models


class Order(models.Model):
    """An order of one item."""

    item = models.CharField(max_length=100)
