"""Who rules: the register of a broker name, in which one value says which copy of its log is the master (docs/replication.md).

A register is a value that is read and replaced by compare-and-swap, kept by etcd or by `lockstep witness`.

    register.py   the value, and what a register has to do      opening.py   --ha URL → register
    etcd.py, witness.py   the two registers                     endpoints.py their addresses, asked in turn
"""
