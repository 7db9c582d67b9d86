"""What the scales of intervals read from rows."""

import pandas as pd
import pytest

from predictor.errors import UnknownDeviceError
from predictor.fit.interval_facts import device_kinds


def test_kinds_of_devices():
    rows = pd.Series(["nvidia-t4", "google-tpu-v4", "nvidia-t4"])
    assert device_kinds(rows).tolist() == ["gpu", "tpu", "gpu"]


def test_a_device_that_nothing_describes_is_refused_by_name():
    with pytest.raises(UnknownDeviceError, match="acme-nine"):
        device_kinds(pd.Series(["nvidia-t4", "acme-nine"]))
