"""How long a test waits for what has to come: long enough for any machine, since a test that passes
does not wait for it.

That something does not come can only be seen for so long: those waits are short, and a slow
machine makes none of them fail.
"""

import time

SECONDS = 60
PAUSE_SECONDS = 0.02


def wait_for(condition, what="it did not come about", seconds=SECONDS):
    """Waits until the condition holds, and returns what it gave; `what` is what was missed, or a
    function that says it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s not yet: {what() if callable(what) else what}")
        time.sleep(PAUSE_SECONDS)
    return found
