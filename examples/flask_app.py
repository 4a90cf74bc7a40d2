"""A Flask application, made by a factory: each request is a message.

::

    gunicorn --preload --workers 3 'flask_app:create_app()'
    curl -X POST http://127.0.0.1:8000/events -d hello
"""

import os

from flask import Flask, request

from pykaproducer.contrib.flask import Kafka

kafka = Kafka(bootstrap_servers=os.environ.get("KAFKA_SERVERS", "localhost:9092"))


def create_app() -> Flask:
    """The application."""
    app = Flask(__name__)
    kafka.init_app(app)

    @app.post("/events")
    def event() -> tuple[str, int]:
        """Accept, and answer at once: the message is delivered meanwhile."""
        kafka.send("events", request.get_data())
        return "", 202

    @app.post("/payments")
    def payment() -> dict[str, int]:
        """Answer when it is in the log; an error of the delivery is an error of the request."""
        metadata = kafka.send("payments", request.get_data()).result(timeout=10)
        return {"partition": metadata.partition, "offset": metadata.offset}

    return app
