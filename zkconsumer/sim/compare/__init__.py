"""One script of joins, departures and failures on several group protocols, and what it costs."""
