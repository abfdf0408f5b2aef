"""A generated history to look around in, for which no model ran: its questions, its answers and what stands around."""
