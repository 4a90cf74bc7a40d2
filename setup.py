"""The compiled kernel; everything else about the package is in setup.cfg."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [
            Extension(
                "pykaproducer._kernel",
                ["pykaproducer/_kernel.pyx"],
                extra_compile_args=["-O3"],
            )
        ]
    )
)
