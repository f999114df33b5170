"""Groups with a broker as coordinator, in virtual time: members, brokers, and a network."""
