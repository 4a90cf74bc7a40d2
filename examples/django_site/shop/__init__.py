"""A site that stores orders in its database and sends a message for each of them."""
