"""The lab: watch and control a group in a browser. `engine` runs it without a server."""
