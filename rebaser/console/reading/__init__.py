"""What viewers read: loaded change sets, what differs between two, and answers that several viewers share."""
