"""A Flask application factory. Each request sends a message.

::

    gunicorn --preload --workers 3 'flask_app:create_app()'
    curl -X POST http://127.0.0.1:8000/events -d hello
"""

import os

from flask import Flask, request

from pykaproducer.contrib.flask import Kafka

kafka = Kafka(bootstrap_servers=os.environ.get("KAFKA_SERVERS", "localhost:9092"))


def create_app() -> Flask:
    """Return the application."""
    app = Flask(__name__)
    kafka.init_app(app)

    @app.post("/events")
    def event() -> tuple[str, int]:
        """Accept an event, and respond immediately; it is delivered in the background."""
        kafka.send("events", request.get_data())
        return "", 202

    @app.post("/payments")
    def payment() -> dict[str, int]:
        """Send a payment, and respond when it is in the log; a delivery error fails the request."""
        metadata = kafka.send("payments", request.get_data()).result(timeout=10)
        return {"partition": metadata.partition, "offset": metadata.offset}

    return app
