"""Results of other measuring tools, read into the one form that this product knows, and our own results written out for others.

`detect.read` takes a file of any of them. One module a tool says what its fields mean, and where its words are not ours; what a tool does not
report is None and never guessed. docs/reference/formats.md has the map.
"""
