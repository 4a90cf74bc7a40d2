"""Two views: one with a transaction, one that is asynchronous."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from pykaproducer import BufferFullError
from pykaproducer.contrib.django import producer, send_on_commit
from shop.models import Order


@transaction.atomic
def order(request: HttpRequest, item: str) -> JsonResponse:
    """Keep an order, and tell Kafka of it when, and only if, it is kept."""
    made = Order.objects.create(item=item)
    told = {"id": made.pk, "item": item}
    send_on_commit("orders", json.dumps(told).encode(), key=str(made.pk).encode())
    return JsonResponse(told)


async def click(request: HttpRequest, item: str) -> JsonResponse:
    """Tell Kafka, and answer with the place in the log."""
    try:
        metadata = await producer.send("clicks", item.encode())
    except BufferFullError:
        return JsonResponse({"error": "try again later"}, status=503)
    return JsonResponse({"partition": metadata.partition, "offset": metadata.offset})
