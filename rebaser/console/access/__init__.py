"""Who may see and do what: the options, the login, the safety rules for every request, and hidden values."""
