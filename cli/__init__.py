"""The tfdist command."""
