"""Research HSTU against the production STU: how much each of their differences moves the output.

Two references with weights made equal (`made_equal`), and a model between them (`between`) that takes each
step as the one or as the other has it. With no difference on it is research HSTU, with all on the production
STU; both ends are checked against the references before anything is measured. Run it with
`python -m cases.research_vs_production --help`; benchmarks/results/research_vs_production.md has the results.
"""
