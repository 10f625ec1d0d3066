"""The Django site: pages, live streams, accounts, and the recorder that alone turns events into rows."""
