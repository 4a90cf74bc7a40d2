"""A site that takes orders, and tells Kafka of each that is in its database."""
