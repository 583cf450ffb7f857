"""What mkdocstrings does with docstrings beside reading them."""

from typing import Any

import griffe


class ExamplesAsCode(griffe.Extension):
    """Let the heading "Example:" be the one that holds code.

    Google's style, and griffe, call it "Examples:"; under another word the lines after
    `>>>` would be prose.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the heading in one docstring.

        Args:
            obj: What has the docstring, if it has one.
        """
        if obj.docstring is not None:
            value = obj.docstring.value
            obj.docstring.value = value.replace("\nExample:\n", "\nExamples:\n")
