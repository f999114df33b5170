"""The costs of one script of joins, departures and failures on several group protocols."""
