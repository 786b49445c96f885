"""Stored rows: blobs, segments, sorted runs, the table they make, the manifest."""
