"""What each scenario gives in a classic session: its rows as text, each with its times since
midnight, its position and, where the folder has it, its micro-batch.
"""

from __future__ import annotations

SEVERAL = {
    "network": [
        "(1, 'AA', 5, 'American', 0.083, 'AMERICAN', 'upsert', '0:00:00', 1, 0)",
        "(1, 'AA', 5, None, 0.083, None, 'upsert', '0:00:00', 0, 0)",
        "(1, None, None, None, None, None, 'delete', '0:11:00', 2, 1)",
        "(2, 'AA', 7, 'American Airlines', 0.117, 'AMERICAN AIRLINES', 'upsert', '0:13:00', 5, 1)",
        "(2, 'AA', 7, 'American', 0.117, 'AMERICAN', 'upsert', '0:10:00', 3, 1)",
        "(2, 'UA', None, 'United', None, 'UNITED', 'upsert', '0:04:00', 2, 0)",
        "(2, 'UA', None, None, None, None, 'upsert', '0:01:00', 0, 0)",
        "(4, None, 1, None, 0.017, None, 'upsert', '0:03:00', 1, 0)",
        "(5, 'UA', 2, 'United', 0.033, 'UNITED', 'upsert', '0:12:00', 4, 1)",
        "(5, 'UA', 2, None, 0.033, None, 'upsert', '0:14:00', 6, 1)",
    ],
    "named": [
        "(1, None, 'Dallas', 5, 'upsert', '0:00:00', 0, 0)",
        "(1, None, None, None, 'upsert', '0:11:00', 4, 1)",
        "(2, 'American', 'Dallas', 7, 'upsert', '0:10:00', 3, 1)",
        "(2, None, None, None, 'upsert', '0:01:00', 1, 0)",
        "(3, None, None, 9, 'upsert', '0:02:00', 0, 0)",
        "(4, None, None, 1, 'upsert', '0:03:00', 2, 0)",
        "(5, 'United', None, 2, 'upsert', '0:12:00', 5, 1)",
    ],
    "counted": [
        "('AA', 1, 5, 'upsert', '0:00:00', 0, 0)",
        "('AA', 1, 7, 'upsert', '0:11:00', 4, 1)",
        "('AA', 2, 12, 'upsert', '0:10:00', 3, 1)",
        "('UA', 1, 2, 'upsert', '0:12:00', 5, 1)",
        "('UA', 1, None, 'upsert', '0:01:00', 1, 0)",
        "('UA', None, None, 'delete', '0:10:00', 2, 1)",
        "('XX', 1, 9, 'upsert', '0:02:00', 0, 0)",
    ],
}
ONE = [
    "(1, 5, 'American', 'upsert', '0:00:00', 1)",
    "(1, 5, None, 'upsert', '0:00:00', 0)",
    "(1, None, None, 'delete', '0:11:00', 4294967296)",
    "(2, 7, 'American Airlines', 'upsert', '0:13:00', 4294967298)",
    "(2, 7, 'American', 'upsert', '0:10:00', 4294967296)",
    "(2, None, 'United', 'upsert', '0:04:00', 3)",
    "(2, None, None, 'upsert', '0:01:00', 1)",
    "(3, 9, None, 'upsert', '0:02:00', 0)",
    "(4, 1, None, 'upsert', '0:03:00', 2)",
    "(5, 2, 'United', 'upsert', '0:12:00', 4294967297)",
    "(5, 2, None, 'upsert', '0:14:00', 4294967299)",
]
LEFT_OUT = [
    [
        "(1, 5, 'American', 'upsert', '0:00:00', 0, 0)",
        "(2, None, 'United', 'upsert', '0:04:00', 0, 0)",
    ],
    [
        (
            "('inner join of flights and carriers', 'on= fails on a row of flights', "
            '\'{"id":3,"carrier":"XX","late":9}\', \'upsert\', \'0:02:00\', 0, 0)'
        )
    ],
]
VIEWED = [
    [
        "(1, 'AA', 5, {'late': 5}, 'American', 'upsert', '0:00:00', 1, 0)",
        "(1, 'AA', 5, {'late': 5}, None, 'upsert', '0:00:00', 0, 0)",
    ],
    [
        'Row(_operator=\'where of flights\', row=\'{"id":4,"late":1,"by":{"late":1}}\')',
        'Row(_operator=\'with_columns of flights\', row=\'{"id":3,"carrier":"XX","late":9}\')',
    ],
]
IN_MEMORY = [
    [
        "(1, None, None, 'delete', '0:11:00', 4294967296)",
        "(2, 7, 'American Airlines', 'upsert', '0:13:00', 4294967298)",
        "(2, 7, 'American', 'upsert', '0:10:00', 4294967296)",
        "(5, 2, 'United', 'upsert', '0:12:00', 4294967297)",
        "(5, 2, None, 'upsert', '0:14:00', 4294967299)",
    ],
    [
        "(1, 5, 'American', 'upsert', '0:00:00', 1, 0)",
        "(1, 5, None, 'upsert', '0:00:00', 0, 0)",
        "(1, None, None, 'delete', '0:11:00', 4294967296, 1)",
        "(2, 7, 'American Airlines', 'upsert', '0:13:00', 4294967298, 1)",
        "(2, 7, 'American', 'upsert', '0:10:00', 4294967296, 1)",
        "(2, None, 'United', 'upsert', '0:04:00', 3, 0)",
        "(2, None, None, 'upsert', '0:01:00', 1, 0)",
        "(3, 9, None, 'upsert', '0:02:00', 0, 0)",
        "(4, 1, None, 'upsert', '0:03:00', 2, 0)",
        "(5, 2, 'United', 'upsert', '0:12:00', 4294967297, 1)",
        "(5, 2, None, 'upsert', '0:14:00', 4294967299, 1)",
    ],
]
IN_DELTA = {
    "network": [
        "(2, 'AA', 7, 'American Airlines', 0.117, 'AMERICAN AIRLINES', '0:13:00')",
        "(4, None, 1, None, 0.017, None, '0:03:00')",
        "(5, 'UA', 2, None, 0.033, None, '0:14:00')",
    ],
    "named": [
        "(1, None, 'Dallas', 5, 'upsert', '0:00:00', 0)",
        "(1, None, None, None, 'upsert', '0:11:00', 4)",
        "(2, 'American', 'Dallas', 7, 'upsert', '0:10:00', 3)",
        "(2, None, None, None, 'upsert', '0:01:00', 1)",
        "(3, None, None, 9, 'upsert', '0:02:00', 0)",
        "(4, None, None, 1, 'upsert', '0:03:00', 2)",
        "(5, 'United', None, 2, 'upsert', '0:12:00', 5)",
    ],
}
THROUGH_A_TOPIC = [
    "(1, 5, 'American', 'AMERICAN', 'upsert', '0:00:00')",
    "(1, 5, None, None, 'upsert', '0:00:00')",
    "(2, None, 'United', 'UNITED', 'upsert', '0:04:00')",
    "(2, None, None, None, 'upsert', '0:01:00')",
    "(4, 1, None, None, 'upsert', '0:03:00')",
    "(['dovetail.timestamp_us=1714521600000000', 'dovetail.change=upsert', 'half=2.5'],)",
    (
        "(['dovetail.timestamp_us=1714521600000000', 'dovetail.change=upsert', "
        "'who=AMERICAN', 'half=2.5'],)"
    ),
    "(['dovetail.timestamp_us=1714521660000000', 'dovetail.change=upsert'],)",
    "(['dovetail.timestamp_us=1714521780000000', 'dovetail.change=upsert', 'half=0.5'],)",
    "(['dovetail.timestamp_us=1714521840000000', 'dovetail.change=upsert', 'who=UNITED'],)",
]
STATIC = [
    "('AA', 1, 5, 'upsert', '0:00:00', 0)",
    "('UA', 1, None, 'upsert', '0:01:00', 1)",
    "('XX', 1, 9, 'upsert', '0:02:00', 0)",
]
BEGUN = [
    [
        "(1, 5, 'American', 'upsert', '0:00:00', 0)",
        "(1, None, None, 'delete', '0:11:00', 4294967296)",
        "(2, 7, 'American', 'upsert', '0:10:00', 4294967296)",
        "(2, None, 'United', 'upsert', '0:01:00', 1)",
        "(3, 9, None, 'upsert', '0:02:00', 0)",
        "(4, 1, None, 'upsert', '0:03:00', 2)",
        "(5, 2, 'United', 'upsert', '0:12:00', 4294967297)",
    ],
    [
        "(2, 'AA', 7, '0:10:00')",
        "(3, 'XX', 9, '0:02:00')",
        "(4, None, 1, '0:03:00')",
        "(5, 'UA', 2, '0:12:00')",
        "(9, 'UA', 60, '0:00:00')",
    ],
    [
        "(2, 7, 'American', '0:10:00')",
        "(3, 9, None, '0:02:00')",
        "(4, 1, None, '0:03:00')",
        "(5, 2, 'United', '0:12:00')",
        "(9, 60, 'United', '0:00:00')",
    ],
    [
        "(2, 'AA', 7, '0:10:00')",
        "(9, 'UA', 60, '0:00:00')",
    ],
]
SNAPSHOTS = [
    [(0, {"a": 1, "b": 1}, None), (1, {"a": 1, "b": 2}, 1), (2, {"a": 1, "b": 3}, 0)],
    ["(1, 'x', 'x')", "(2, 'y', None)"],
]
NETWORK = [
    "(1, 'AA', 5, 'American', 0.083, 'AMERICAN', 'upsert', '0:00:00', 1)",
    "(1, 'AA', 5, None, 0.083, None, 'upsert', '0:00:00', 0)",
    "(1, None, None, None, None, None, 'delete', '0:11:00', 2)",
    "(2, 'AA', 7, 'American Airlines', 0.117, 'AMERICAN AIRLINES', 'upsert', '0:13:00', 5)",
    "(2, 'AA', 7, 'American', 0.117, 'AMERICAN', 'upsert', '0:10:00', 3)",
    "(2, 'UA', None, 'United', None, 'UNITED', 'upsert', '0:04:00', 2)",
    "(2, 'UA', None, None, None, None, 'upsert', '0:01:00', 0)",
    "(4, None, 1, None, 0.017, None, 'upsert', '0:03:00', 1)",
    "(5, 'UA', 2, 'United', 0.033, 'UNITED', 'upsert', '0:12:00', 4)",
    "(5, 'UA', 2, None, 0.033, None, 'upsert', '0:14:00', 6)",
]
