"""Groups of the later protocols in virtual time: members, brokers with a coordinator, a network."""
