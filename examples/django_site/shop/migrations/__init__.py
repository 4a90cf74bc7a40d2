"""How the database came about."""
