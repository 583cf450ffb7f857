"""Rendezvous of the processes of a job: start handshake, heartbeats, diagnostics."""
