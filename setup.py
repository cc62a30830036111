"""The native extension; everything else about the package is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tilewright.native",
            sources=sorted(glob("src/tilewright/native/*.c")),
            depends=sorted(glob("src/tilewright/native/*.h")),
            extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra", "-Wno-missing-field-initializers"],
            libraries=["dl", "pthread"],
        )
    ]
)
