"""The wire formats of single fields of a commit. `messages.commit` assembles the commit from them."""
