"""Models of the zoo that are neither plain text nor plain images: speech, clicks, graphs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from predictor.zoo.dlrm import Dlrm, DlrmConfig, clicks
from predictor.zoo.entry import Entry
from predictor.zoo.gcn import Gcn, GcnConfig, citation_graph
from predictor.zoo.whisper import Whisper, WhisperConfig, speech

OTHER: Mapping[str, Entry] = {
    "whisper-base": Entry(
        build=partial(Whisper, WhisperConfig()),
        parameters=72_593_920,
        batch=8,
        seq=448,
        longest=448,
        inputs=speech,
        takes="speech",
        description="Whisper base: 30 seconds of speech, seq target tokens",
    ),
    "dlrm": Entry(
        build=partial(Dlrm, DlrmConfig()),
        parameters=540_677_217,
        batch=2048,
        inputs=clicks,
        takes="clicks",
        description="DLRM: the 26 tables of Criteo Kaggle, bottom and top MLP",
    ),
    "gcn-arxiv": Entry(
        build=partial(Gcn, GcnConfig()),
        parameters=110_120,
        batch=1,
        inputs=citation_graph,
        takes="graphs",
        description="three-layer GCN on a graph of the size of ogbn-arxiv",
    ),
}
"""The other models by name."""
