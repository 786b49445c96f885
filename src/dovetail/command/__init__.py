"""The commands of ``dovetail``, a module for each job."""
