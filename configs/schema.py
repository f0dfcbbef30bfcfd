"""The typed, frozen form of a case, the source of both sides of a parity run.

A case is one YAML file: a model, and the shape of its synthetic input. All values are strict: text is no
number, and an unknown key is an error. They are checked once, on reading; the code that builds models needs
no checks of its own. Sizes are counts of items unless a field names another unit.

Each family has its own model and input, in a file of its own, and its own case below.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from configs.dlrm import DLRMConfig, DLRMInput
from configs.dlrmv3 import DLRMv3Config, DLRMv3Input
from configs.fields import Strict, raise_problems
from configs.hstu import HSTUConfig, HSTUInput
from configs.lecture_dlrm import LectureDLRMConfig, LectureDLRMInput
from configs.stu import STUConfig, STUInput


class CaseConfig(Strict):
    """One case: a model, its input, and whether a plain run includes it. Base of the classes below."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="lower case letters, digits and underscores")
    description: str = Field(min_length=1, description="one line for lists")
    family: str
    model: Strict = Field(description="the mapping of the model's sizes and choices")
    input: Strict = Field(description="the mapping of the input's sizes and seed")
    default: bool = Field(default=False, description="whether a run that names no case includes this one")


class HSTUCaseConfig(CaseConfig):
    """A case of research HSTU."""

    family: Literal["hstu"]
    model: HSTUConfig = Field(description="the mapping of the model's sizes and choices")
    input: HSTUInput = Field(description="the mapping of the input's sizes and seed")

    @model_validator(mode="after")
    def _input_fits_model(self) -> HSTUCaseConfig:
        problems = []
        if self.input.num_candidates > self.model.num_items:
            problems.append(
                f"input.num_candidates: {self.input.num_candidates} is more than model.num_items "
                f"{self.model.num_items}; give at most {self.model.num_items}"
            )
        lengths = self.input.lengths
        if lengths is not None and len(lengths) != self.input.batch_size:
            problems.append(
                f"input.lengths: {len(lengths)} lengths for input.batch_size {self.input.batch_size}; "
                "give one for each user"
            )
        for row, length in enumerate(lengths or ()):
            if length > self.model.max_sequence_len:
                problems.append(
                    f"input.lengths[{row}]: {length} is above model.max_sequence_len "
                    f"{self.model.max_sequence_len}; give at most {self.model.max_sequence_len}"
                )
        raise_problems(problems)
        return self


class DLRMCaseConfig(CaseConfig):
    """A case of DLRM."""

    family: Literal["dlrm"]
    model: DLRMConfig = Field(description="the mapping of the model's sizes and choices")
    input: DLRMInput = Field(description="the mapping of the input's sizes and seed")

    @model_validator(mode="after")
    def _input_fits_model(self) -> DLRMCaseConfig:
        longest, limit = self.input.longest_bag, self.model.max_bag_size
        if limit is not None and longest > limit:
            raise_problems(
                [
                    f"input.longest_bag: {longest} is above model.max_bag_size {limit}; "
                    f"give at most {limit}, or leave max_bag_size out"
                ]
            )
        return self


class DLRMv3CaseConfig(CaseConfig):
    """A case of DLRMv3."""

    family: Literal["dlrmv3"]
    model: DLRMv3Config = Field(description="the mapping of the model's sizes and choices")
    input: DLRMv3Input = Field(description="the mapping of the input's sizes and seed")
    requests: Literal["streaming_400m", "small", "tiny"] | None = Field(
        default=None,
        description="the generated data that are served and trained on; left out, those whose number of "
        "candidates the model takes are served, and the small ones train",
    )


class LectureDLRMCaseConfig(CaseConfig):
    """A case of the lecture's DLRM."""

    family: Literal["lecture_dlrm"]
    model: LectureDLRMConfig = Field(description="the mapping of the model's sizes and choices")
    input: LectureDLRMInput = Field(description="the mapping of the input's sizes and seed")


class STUCaseConfig(CaseConfig):
    """A case of the production STU stack."""

    family: Literal["stu"]
    model: STUConfig = Field(description="the mapping of the model's sizes and choices")
    input: STUInput = Field(description="the mapping of the input's sizes and seed")


#: Types of cases by `family`, in alphabetical order.
CASE_TYPES: dict[str, type[CaseConfig]] = {
    "dlrm": DLRMCaseConfig,
    "dlrmv3": DLRMv3CaseConfig,
    "hstu": HSTUCaseConfig,
    "lecture_dlrm": LectureDLRMCaseConfig,
    "stu": STUCaseConfig,
}
