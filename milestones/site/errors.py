"""The one error of the site's tooling: a page asks for something that is not there."""

from __future__ import annotations


class DirectiveError(ValueError):
    """A directive in a page names a file, a name, a milestone, a table or an option that does not exist."""
