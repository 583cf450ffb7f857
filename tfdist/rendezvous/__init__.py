"""The processes of a job meet, and watch each other."""
