"""The sink on a real Spark, into a real Kafka."""
