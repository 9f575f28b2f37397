"""What the user is told of a mistake."""

import pytest

from decoupled.core.errors import UserError


def refusal(function, *arguments, **options):
    """The one line of the UserError that a call ends in."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
