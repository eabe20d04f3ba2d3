"""headgate and its peers, measured in one run: `make bench`, or `python -m bench --help`."""
