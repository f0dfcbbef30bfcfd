"""The dialect's enumerations. `XAttr.get("kCASE")` checks the case and keeps its name."""

from __future__ import annotations

from tripy_portable.ir.attributes import Attribute


class EnumAttr(Attribute):
    """Base of the enumerations; `value` is the case's name."""

    cases: tuple[str, ...] = ()

    @classmethod
    def get(cls, case: str, context: object | None = None) -> EnumAttr:
        if case not in cls.cases:
            raise ValueError(f"{cls.__name__}: {case!r} is not one of {', '.join(cls.cases)}.")
        return cls(case)


class ActivationTypeAttr(EnumAttr):
    cases = (
        "kRELU",
        "kSIGMOID",
        "kTANH",
        "kLEAKY_RELU",
        "kELU",
        "kSELU",
        "kSOFTSIGN",
        "kSOFTPLUS",
        "kCLIP",
        "kHARD_SIGMOID",
        "kSCALED_TANH",
        "kTHRESHOLDED_RELU",
        "kGELU_ERF",
        "kGELU_TANH",
    )


class UnaryOperationAttr(EnumAttr):
    cases = (
        "kEXP",
        "kLOG",
        "kSQRT",
        "kRECIP",
        "kABS",
        "kNEG",
        "kSIN",
        "kCOS",
        "kTAN",
        "kSINH",
        "kCOSH",
        "kASIN",
        "kACOS",
        "kATAN",
        "kASINH",
        "kACOSH",
        "kATANH",
        "kCEIL",
        "kFLOOR",
        "kERF",
        "kNOT",
        "kSIGN",
        "kROUND",
    )


class ElementWiseOperationAttr(EnumAttr):
    cases = (
        "kSUM",
        "kPROD",
        "kMAX",
        "kMIN",
        "kSUB",
        "kDIV",
        "kPOW",
        "kFLOOR_DIV",
        "kAND",
        "kOR",
        "kXOR",
        "kEQUAL",
        "kGREATER",
        "kLESS",
    )


class ReduceOperationAttr(EnumAttr):
    cases = ("kSUM", "kPROD", "kMAX", "kMIN", "kAVG")


class TopKOperationAttr(EnumAttr):
    cases = ("kMAX", "kMIN")


class MatrixOperationAttr(EnumAttr):
    cases = ("kNONE", "kTRANSPOSE", "kVECTOR")


class SliceModeAttr(EnumAttr):
    cases = ("kDEFAULT", "kWRAP", "kCLAMP", "kFILL", "kREFLECT")


class PoolingTypeAttr(EnumAttr):
    cases = ("kMAX", "kAVERAGE", "kMAX_AVERAGE_BLEND")


class ResizeCoordinateTransformationAttr(EnumAttr):
    cases = ("kALIGN_CORNERS", "kASYMMETRIC", "kHALF_PIXEL")


class ResizeSelectorAttr(EnumAttr):
    cases = ("kFORMULA", "kUPPER")


class ResizeRoundModeAttr(EnumAttr):
    cases = ("kHALF_UP", "kHALF_DOWN", "kFLOOR", "kCEIL")
