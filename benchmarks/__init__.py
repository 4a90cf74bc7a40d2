"""The benchmarks: ``python -m benchmarks`` from the project's root. See ``README.rst``."""
