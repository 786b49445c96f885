"""What all tests of operators share: cases, one way to read them, one way to run them.

``records``: what goes in and what comes out. ``models``: each operator by definition. ``families``:
per family of operators its topologies, as text, in dovetail and as Kafka Streams has them.
``truth_tables`` reads ``spec/``; ``runners`` run a case in every way; ``kafka_streams`` asks Kafka
Streams.
"""
