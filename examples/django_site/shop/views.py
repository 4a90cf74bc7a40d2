"""A view with a transaction, and an asynchronous view."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from pykaproducer import BufferFullError
from pykaproducer.contrib.django import producer, send_on_commit
from shop.models import Order


@transaction.atomic
def order(request: HttpRequest, item: str) -> JsonResponse:
    """Store an order, and send a message when the transaction is committed."""
    made = Order.objects.create(item=item)
    content = {"id": made.pk, "item": item}
    send_on_commit("orders", json.dumps(content).encode(), key=str(made.pk).encode())
    return JsonResponse(content)


async def click(request: HttpRequest, item: str) -> JsonResponse:
    """Send a click, and respond with its partition and offset."""
    try:
        metadata = await producer.send("clicks", item.encode())
    except BufferFullError:
        return JsonResponse({"error": "try again later"}, status=503)
    return JsonResponse({"partition": metadata.partition, "offset": metadata.offset})
