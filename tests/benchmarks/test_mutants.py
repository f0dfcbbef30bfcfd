"""Bodies of functions that are exchanged for a mutant's."""

from benchmarks.mutation.mutants import exchange, plain


class Base:
    def name(self):
        return "base"


class Other(Base):
    def name(self):
        return f"other {super().name()}"


def test_a_mutant_may_forget_the_class_above():
    def changed(self):
        return "changed"

    live = plain(vars(Other)["name"])
    before = live.__code__
    exchange(live, changed)
    assert Other().name() == "changed"
    live.__code__ = before
    assert Other().name() == "other base"
