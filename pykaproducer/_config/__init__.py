"""The settings: their definitions, and how they are read, validated and combined."""
