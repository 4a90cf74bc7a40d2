"""kafka-python's KafkaProducer, implemented with this producer."""
