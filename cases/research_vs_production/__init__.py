"""Research HSTU against the production STU: how much each of their differences moves the output.

Two references have equal weights (`made_equal`). A model between them (`between`) takes each step from the
one or the other. With no difference on it is research HSTU, with all on the production STU. Both ends are
checked against the references before the measurement. Run it with `python -m cases.research_vs_production
--help`; benchmarks/results/research_vs_production.md has the results.
"""
