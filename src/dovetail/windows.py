"""Windows of event time, for ``group_by(...).window(...)``."""

from dovetail.plan.types.windows import Windows, hopping, session, sliding, tumbling

__all__ = ["Windows", "hopping", "session", "sliding", "tumbling"]


def __dir__() -> list[str]:
    return __all__
