"""Embedding tables outside the graph: rows and pooled sums by id, from engines with one interface.

    from tables.local import MappedTables

    with MappedTables(folder) as tables:
        rows = tables.lookup("item", ids)

`tables.interface.Tables` is the interface, and `tables.store` writes the folder. `tables.local` has
memory-mapped host memory and one device, `tables.sharded` shards in several processes.
"""
