"""The errors that Tilewright raises, for `except tilewright.errors.CompileError`."""

from .base.errors import (
    ArgumentError,
    CompileError,
    Location,
    NotCallable,
    OptionError,
    ParseError,
    RecordError,
    SettingError,
    StepLimit,
    TilewrightError,
    UnknownBackend,
    UnknownOption,
    UnsupportedTensor,
    VerifyError,
    WrongDevice,
)

__all__ = [
    "ArgumentError",
    "CompileError",
    "Location",
    "NotCallable",
    "OptionError",
    "ParseError",
    "RecordError",
    "SettingError",
    "StepLimit",
    "TilewrightError",
    "UnknownBackend",
    "UnknownOption",
    "UnsupportedTensor",
    "VerifyError",
    "WrongDevice",
]
