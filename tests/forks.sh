#!/bin/sh
# The Python of the tests' Spark: see forks.py.
if [ "$2" = pyspark.sql.streaming.transform_with_state_driver_worker ] && [ -S "$DOVETAIL_TESTS_FORKS" ]
then exec "$DOVETAIL_TESTS_PYTHON" -I -S "${0%.sh}_client.py" "$@"
else exec "$DOVETAIL_TESTS_PYTHON" "$@"
fi
