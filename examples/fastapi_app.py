"""A FastAPI application that awaits deliveries without blocking other requests.

::

    uvicorn fastapi_app:app
    curl -X POST http://127.0.0.1:8000/readings/12.5
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from pykaproducer import BufferFullError, Producer

# max_block_ms=0: raise immediately if the buffer is full; waiting would block the event loop.
producer = Producer(
    bootstrap_servers=os.environ.get("KAFKA_SERVERS", "localhost:9092"), max_block_ms=0
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Deliver pending messages before the server ends: uvicorn does not run exit hooks."""
    yield
    await asyncio.to_thread(producer.close, 10)


app = FastAPI(lifespan=lifespan)


@app.post("/readings/{reading}")
async def read(reading: float) -> dict[str, int]:
    """Send a reading, and respond when it is in the log."""
    try:
        metadata = await producer.send("readings", str(reading).encode())
    except BufferFullError:
        raise HTTPException(503, "try again later") from None
    return {"partition": metadata.partition, "offset": metadata.offset}
