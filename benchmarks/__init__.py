"""The benchmarks: ``python -m benchmarks`` from the project's root. ``README.rst`` says how."""
