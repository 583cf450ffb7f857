"""Starting the processes of a job, supervising them, and cleaning up after them."""
