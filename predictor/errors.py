"""Errors a user can mend: every one names the value, what is allowed, and the remedy."""

from __future__ import annotations


class PredictorError(Exception):
    """Base class of all errors that a user can mend."""


class UnknownDeviceError(PredictorError):
    """No device, or more than one, answers to the name given."""


class DeviceFileError(PredictorError):
    """A device file has an unknown field, a missing field or a value outside its range."""


class UnsupportedPrecision(PredictorError):
    """The device has no hardware path for the dtype (or its peak rate is unknown)."""


class UnknownRateError(UnsupportedPrecision):
    """The device supports the dtype, but the catalogue does not know the rate."""


class CaptureError(PredictorError):
    """A program cannot be captured: the message says where and what to pass instead."""


class UnknownTargetError(PredictorError):
    """TARGET is neither a zoo name, a readable file nor `file.py:function`."""


class CostRuleError(PredictorError):
    """A captured op computes something and has no cost rule."""


class DataError(PredictorError):
    """A measured-data file cannot be read: names file, row, column, value and rule."""


class RecipeError(PredictorError):
    """A recipe has an unknown key or a value out of range."""


class CheckpointError(PredictorError):
    """A checkpoint is missing a file, has a wrong hash, or an unknown version or key."""


class NotYetError(PredictorError):
    """The option is part of the command line's contract but does not work yet."""


class MissingExtraError(PredictorError):
    """The command needs packages that an optional part of the installation brings."""


class AdapterError(PredictorError):
    """Rows that no adapter can be fitted on, or an adapter that does not belong here."""
