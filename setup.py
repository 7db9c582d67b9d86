"""Packages and data: `checkpoints/` installs as the package `predictor._weights`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["predictor*"]), "predictor._weights"],
    package_dir={"predictor._weights": "checkpoints"},
    package_data={
        "predictor": ["py.typed"],
        "predictor._weights": ["*/*.json", "*/*.safetensors", "*/*.md"],
        "predictor.hardware": ["*.toml", "*.csv", "*/*.toml", "*/*.csv"],
    },
    include_package_data=False,
)
