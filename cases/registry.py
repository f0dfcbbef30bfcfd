"""Model families: everything that the harness must know about one architecture, in one file each.

To add a model, write its configuration (a file in `configs/`, named in `configs/schema.py`), its reference,
its port, and one file here after the example of `cases/dlrm/case.py`.
"""

from __future__ import annotations

from parity.case import Family


def get_family(name: str) -> Family:
    """The family named in a case's `family` field, which `configs` has validated."""
    from cases.dlrm.case import DLRM_FAMILY
    from cases.hstu.case import HSTU_FAMILY
    from cases.hstu.fused import HSTU_FUSED_FAMILY
    from cases.lecture_dlrm.case import LECTURE_DLRM_FAMILY
    from cases.stu.case import STU_FAMILY
    from cases.stu.fused import STU_FUSED_FAMILY

    families = (
        DLRM_FAMILY,
        HSTU_FAMILY,
        HSTU_FUSED_FAMILY,
        LECTURE_DLRM_FAMILY,
        STU_FAMILY,
        STU_FUSED_FAMILY,
    )
    return {family.name: family for family in families}[name]


__all__ = ["Family", "get_family"]
