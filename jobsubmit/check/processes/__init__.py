"""What processes of a job do otherwise than the others: they are followed one by one, and compared."""
