"""Packages and data: `checkpoints/` installs as `predictor._weights`, graph banks likewise."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["predictor*"]),
        "predictor._weights",
        "predictor._timm_graphs",
        "predictor._gptbench_graphs",
        "predictor._own_graphs",
        "predictor._tpugraphs_graphs",
        "predictor._enzyme_graphs",
    ],
    package_dir={
        "predictor._weights": "checkpoints",
        "predictor._timm_graphs": "datasets/timm/graphs",
        "predictor._gptbench_graphs": "datasets/gptbench/graphs",
        "predictor._own_graphs": "datasets/own/graphs",
        "predictor._tpugraphs_graphs": "datasets/tpugraphs/graphs",
        "predictor._enzyme_graphs": "datasets/enzyme/graphs",
    },
    package_data={
        "predictor": ["py.typed"],
        "predictor._weights": ["*/*.json", "*/*.safetensors", "*/*.md"],
        "predictor._timm_graphs": ["*.parquet"],
        "predictor._gptbench_graphs": ["*.parquet"],
        "predictor._own_graphs": ["*.parquet"],
        "predictor._tpugraphs_graphs": ["*.parquet"],
        "predictor._enzyme_graphs": ["*.parquet"],
        "predictor.traces.measure": ["grids/*.toml"],
        "predictor.calibrate": ["*.toml"],
        "predictor.fit": ["*.toml", "*.csv"],
        "predictor.hardware": ["*.toml", "*.csv", "*/*.toml", "*/*.csv"],
    },
    include_package_data=False,
)
