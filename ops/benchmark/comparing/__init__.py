"""Two or more sides of runs held against each other: which levels may be compared, by how much they differ, and whether that is more than luck."""
