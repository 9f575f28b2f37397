"""The messages that tell users of their mistakes."""

import pytest

from decoupled.core.errors import UserError


def refusal(function, *arguments, **options):
    """The one line of the UserError that a call ends in."""
    with pytest.raises(UserError) as error:
        function(*arguments, **options)
    message = str(error.value)
    assert "\n" not in message
    return message
