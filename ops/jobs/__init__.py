"""Jobs on a node: what one says (events), what it does (pipeline), what keeps it safe (journal, leases)."""
